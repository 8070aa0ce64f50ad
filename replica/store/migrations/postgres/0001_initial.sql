-- usable from version 1
--
-- The participant's shared state. Times are microseconds since 1970, UTC. No sequence anywhere: a rollback leaves a
-- gap in one, so ledger offsets come from a counter in the one row of `participant`.

-- `pruned_to`: completions up to this ledger offset may be deleted. The active moves it, on the lock session; deleting
-- what is below is house-keeping, for a role that replicas do not log in as. `record_format`, `rules_version`: what the
-- next activation writes. Raised by operators, never lowered.
CREATE TABLE participant (
    only_row           boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    ledger_id          uuid    NOT NULL DEFAULT gen_random_uuid(),
    topic_id           text,
    epoch              bigint  NOT NULL DEFAULT 0,
    ledger_end         bigint  NOT NULL DEFAULT 0,
    published_offset   bigint  NOT NULL DEFAULT -1,
    published_position bytea,
    pruned_to          bigint  NOT NULL DEFAULT 0,
    record_format      int     NOT NULL DEFAULT 2,
    rules_version      int     NOT NULL DEFAULT 3
);
INSERT INTO participant DEFAULT VALUES;

-- Who held each epoch, and why its reign ended. `ended_at` and `end_reason` are the holder's own words: said on the lock
-- session before it let go, or later, once it reaches the database again. A holder that is killed says nothing, so its
-- successor notes, with the grant of its own epoch, that it found the reign over: the latest moment at which it can have
-- ended.
CREATE TABLE epoch_grant (
    epoch         bigint PRIMARY KEY,
    replica       text NOT NULL,
    granted_at    timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended_at      timestamptz,
    end_reason    text,
    found_over_at timestamptz,
    found_over_by text
);

-- Grows with the log: the final word on every submission, in log order, dense. The deduplication period that was
-- honoured is so many microseconds, or all above a ledger offset; both are NULL where it is not known.
CREATE TABLE completion (
    ledger_offset       bigint PRIMARY KEY,
    log_offset          bigint NOT NULL,
    change_id           bytea  NOT NULL,
    user_id             text   NOT NULL,
    command_id          text   NOT NULL,
    act_as              text[] NOT NULL,
    submission_id       text   NOT NULL,
    tx_id               bytea  NOT NULL,
    content_digest      bytea  NOT NULL,
    outcome             text   NOT NULL,
    notarised_offset    bigint,
    recorded_us         bigint NOT NULL,
    detail              bytea  NOT NULL,
    deduplication_us    bigint,
    deduplication_after bigint
);

-- What the planner learns about columns that no plan depends on is not worth finding out.
ALTER TABLE completion
    ALTER ledger_offset SET STATISTICS 10, ALTER change_id SET STATISTICS 0, ALTER submission_id SET STATISTICS 0,
    ALTER log_offset SET STATISTICS 0, ALTER user_id SET STATISTICS 0, ALTER command_id SET STATISTICS 0,
    ALTER act_as SET STATISTICS 0, ALTER tx_id SET STATISTICS 0, ALTER content_digest SET STATISTICS 0,
    ALTER outcome SET STATISTICS 0, ALTER notarised_offset SET STATISTICS 0, ALTER recorded_us SET STATISTICS 0,
    ALTER detail SET STATISTICS 0, ALTER deduplication_us SET STATISTICS 0, ALTER deduplication_after SET STATISTICS 0;

-- How long the archive's manifest was when it was last written, and the hash of its last line: without it, nobody
-- could tell an archive whose end was cut off from one that never had more. Written by the archiver, idempotent.
CREATE TABLE archive_head (
    archive_id  text        PRIMARY KEY,
    lines       bigint      NOT NULL,
    hash        text        NOT NULL,
    last_offset bigint      NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- One row while operators have paused fail-over: nobody but the keeper asks for the lock.
CREATE TABLE failover_pause (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    keeper    text        NOT NULL,
    reason    text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- The operators' trail: one line of JSON for each entry, signed, with the hash of the line before. Lines are in ASCII.
-- Roles that write add lines, and may neither change nor delete any.
CREATE TABLE operator_trail (
    number     bigint      PRIMARY KEY CHECK (number > 0),
    line       text        NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- How many ranges of sequence numbers were given away to workers (docs/decisions/0021-workers.md). It never falls.
CREATE TABLE worker_numbers (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    drawn    bigint  NOT NULL DEFAULT 0 CHECK (drawn >= 0)
);
INSERT INTO worker_numbers DEFAULT VALUES;

-- The mark with which a replica ended, because its log contradicts it (docs/architecture.md): one row a replica, for peers
-- that did not ask it before it was gone.
CREATE TABLE contradicted_mark (
    replica  text        PRIMARY KEY,
    mark     bytea       NOT NULL CHECK (octet_length(mark) <= 2600),
    own_disk boolean     NOT NULL,
    left_at  timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- For people.
CREATE VIEW leader_history AS
SELECT epoch, replica, granted_at, lead(granted_at) OVER (ORDER BY epoch) AS succeeded_at,
       ended_at, end_reason, found_over_at, found_over_by
  FROM epoch_grant;

CREATE VIEW published_state AS
SELECT p.ledger_id, p.topic_id, p.epoch, g.replica, g.granted_at, p.published_offset, p.ledger_end,
       (SELECT max(version) FROM schema_version) AS schema_version
  FROM participant p LEFT JOIN epoch_grant g USING (epoch);
