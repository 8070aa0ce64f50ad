-- Least privilege for the participant database. Run it as the tables' owner with the right to create roles, after every
-- `notary store migrate`; it may be run any number of times.
--
-- The owner (whoever migrates) is not what replicas log in as. Make the replicas' login a member of notary_writer, and
-- those of people and monitors members of notary_reader,
-- and whoever archives a member of notary_archivist:
--     CREATE ROLE replica LOGIN PASSWORD '...' IN ROLE notary_writer;
-- What was published can then not be changed or deleted with a replica's credentials.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'notary_reader') THEN
        CREATE ROLE notary_reader NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'notary_writer') THEN
        CREATE ROLE notary_writer NOLOGIN IN ROLE notary_reader;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'notary_pruner') THEN
        CREATE ROLE notary_pruner NOLOGIN IN ROLE notary_reader;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'notary_archivist') THEN
        CREATE ROLE notary_archivist NOLOGIN IN ROLE notary_reader;
    END IF;
END
$$;

-- Advisory locks have no owner: whoever may connect to a database may take each lock of it, the replicas' as well. So the
-- database is this ledger's alone, and nobody connects but members of these roles. (Without effect where the owner of the
-- tables does not own the database: its owner does it then.)
DO $$
BEGIN
    EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database());
    EXECUTE format('GRANT CONNECT ON DATABASE %I TO notary_reader', current_database());
END
$$;

REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO notary_reader;

GRANT SELECT ON schema_version, participant, epoch_grant, completion, leader_history, published_state, archive_head,
                failover_pause, operator_trail, worker_numbers, contradicted_mark
    TO notary_reader;

GRANT UPDATE (topic_id, epoch, ledger_end, published_offset, published_position, pruned_to)
    ON participant TO notary_writer;
GRANT INSERT, UPDATE (ended_at, end_reason, found_over_at, found_over_by) ON epoch_grant TO notary_writer;
GRANT INSERT, UPDATE, DELETE ON failover_pause, contradicted_mark TO notary_writer;
GRANT UPDATE (drawn) ON worker_numbers TO notary_writer;
GRANT INSERT ON operator_trail TO notary_writer; -- who may change or delete an entry could hide it
GRANT INSERT ON completion TO notary_writer;

GRANT INSERT, UPDATE ON archive_head TO notary_archivist;

-- For the login that `notary store prune` uses; replicas move the bound, and delete nothing.
GRANT DELETE ON completion TO notary_pruner;
