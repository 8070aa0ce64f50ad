-- The request log in a schema of its own, as its owner makes it. Whoever runs it owns what is here and logs in as nobody
-- else: replicas get the rights of rights.sql. docs/decisions/0013 has the argument.

CREATE SCHEMA notary_log;

-- One row. Its lock is held until the commit that raised it is visible, so offsets are dense in the order of commits.
CREATE TABLE notary_log.log_head (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    log_id uuid NOT NULL DEFAULT gen_random_uuid(),
    end_offset bigint NOT NULL DEFAULT 0 CHECK (end_offset >= 0),
    partition_records bigint NOT NULL CHECK (partition_records > 0)
) WITH (fillfactor = 10); -- room for many versions of the row in its page, where they are pruned without a vacuum

CREATE TABLE notary_log.log_batch (
    first_offset bigint NOT NULL PRIMARY KEY CHECK (first_offset >= 0),
    appended_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    records bytea [] NOT NULL CHECK (cardinality(records) > 0),
    next_offset bigint NOT NULL GENERATED ALWAYS AS (first_offset + cardinality(records)) STORED
) PARTITION BY RANGE (first_offset);
ALTER TABLE notary_log.log_batch ALTER COLUMN records SET STORAGE EXTERNAL; -- signatures and hashes do not compress

-- Makes the partition of the log's end and two more. It may be run at any time, by several at once: the lock lets others
-- read and append meanwhile. Returns how many it made.
CREATE FUNCTION notary_log.make_partitions() RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    made integer := 0;
    size bigint;
    lower_bound bigint;
    name text;
BEGIN
    LOCK TABLE notary_log.log_batch IN SHARE UPDATE EXCLUSIVE MODE;
    SELECT partition_records, end_offset / partition_records * partition_records INTO size, lower_bound
      FROM notary_log.log_head;
    FOR bound IN lower_bound .. lower_bound + 2 * size BY size LOOP
        name := 'log_batch_' || bound;
        CONTINUE WHEN to_regclass('notary_log.' || quote_ident(name)) IS NOT NULL;
        EXECUTE format('CREATE TABLE notary_log.%I (LIKE notary_log.log_batch INCLUDING ALL)', name);
        EXECUTE format('ALTER TABLE notary_log.log_batch ATTACH PARTITION notary_log.%I FOR VALUES FROM (%s) TO (%s)',
                       name, bound, bound + size);
        made := made + 1;
    END LOOP;
    RETURN made;
END
$$;

-- Puts one batch at the end; returns its first offset. It holds the head until its transaction ends.
-- An open snapshot keeps all older versions of the head. The newest is found without reading them: the index's entries of
-- one key are in the order of their places in the table, and new versions are put at its end, so the search is from there.
CREATE FUNCTION notary_log.append(log uuid, records bytea []) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
DECLARE
    first bigint;
    place tid; -- of the version that is locked: a statement that begins after the lock sees it
BEGIN
    IF current_setting('synchronous_commit') IN ('off', 'local') THEN
        RAISE EXCEPTION 'this session commits asynchronously' USING ERRCODE = 'NL002';
    END IF;
    SELECT h.ctid, h.end_offset INTO place, first
      FROM notary_log.log_head AS h WHERE h.log_id = log
     ORDER BY h.only_row DESC LIMIT 1 FOR UPDATE;
    UPDATE notary_log.log_head SET end_offset = first + cardinality(records) WHERE ctid = place;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no head of log %', log USING ERRCODE = 'NL001';
    END IF;
    INSERT INTO notary_log.log_batch (first_offset, records) VALUES (first, records);
    PERFORM pg_notify('notary_log', '');
    RETURN first;
END
$$;

-- What writers call: the append with its commit. A client of the extended protocol sends the end of its transaction in a
-- message of its own, and would hold the head where it stops before that. With the commit in here, nothing is held once
-- the statement is over. A procedure that commits cannot run with its owner's rights, so the function above does.
-- It returns what a look would show of this batch, too: the position of the server's disk after the commit, and what that
-- many standbys have on theirs. The second commit ends the transaction that asked.
CREATE PROCEDURE notary_log.append_and_commit(
    log uuid, records bytea [], standbys integer, INOUT first bigint, INOUT "position" bigint, INOUT flushed bigint
)
LANGUAGE plpgsql AS $$
BEGIN
    first := notary_log.append(log, records);
    COMMIT;
    position := pg_current_wal_flush_lsn() - '0/0'::pg_lsn;
    flushed := notary_log.flushed(standbys);
    COMMIT;
END
$$;

-- The WAL position that so many standbys have on disk; with 0, this server's own disk. NULL: fewer standbys are there.
-- A server that replays counts: neither logical subscribers nor pg_basebackup and pg_receivewal, which cannot be promoted.
-- One standby counts once, although the connection that it lost may linger beside its new one.
CREATE FUNCTION notary_log.flushed(standbys integer) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF standbys = 0 THEN
        RETURN (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint;
    END IF;
    RETURN (
        SELECT (max(r.flush_lsn) - '0/0'::pg_lsn)::bigint
          FROM pg_stat_replication r
          JOIN pg_stat_activity a USING (pid)
         WHERE a.datid IS NULL AND r.replay_lsn IS NOT NULL AND r.flush_lsn IS NOT NULL
         GROUP BY r.application_name, r.client_addr
         ORDER BY 1 DESC
        OFFSET standbys - 1 LIMIT 1
    );
END
$$;

-- Whether the owner is shown what standbys report. Without it `flushed` would say for ever that there are none.
CREATE FUNCTION notary_log.sees_standbys() RETURNS boolean
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')
$$;

-- How many transactions ago the oldest snapshot began that keeps dead rows of this database, whoever holds it: a session, a
-- standby that feeds back, a slot, a prepared transaction. NULL: the owner is not shown what others do.
CREATE FUNCTION notary_log.oldest_snapshot() RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT CASE WHEN pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') THEN (
        SELECT coalesce(max(age(held.by)), 0)::bigint
          FROM (SELECT backend_xmin FROM pg_stat_activity WHERE datname = current_database() OR datid IS NULL
                UNION ALL SELECT xmin FROM pg_replication_slots
                UNION ALL SELECT transaction FROM pg_prepared_xacts WHERE database = current_database()) AS held (by)
    ) END
$$;

REVOKE ALL ON ALL ROUTINES IN SCHEMA notary_log FROM PUBLIC;
-- For whoever may use the schema: the rights that are granted by name are those of logs that lack it as well.
GRANT EXECUTE ON FUNCTION notary_log.oldest_snapshot TO PUBLIC;
