-- usable from version 1
--
-- The participant's shared state. Times are microseconds since 1970, UTC. No sequence anywhere: a rollback leaves a
-- gap in one, so ledger offsets come from a counter in the one row of `participant`.

CREATE TABLE participant (
    only_row           boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    ledger_id          uuid    NOT NULL DEFAULT gen_random_uuid(),
    topic_id           text,
    epoch              bigint  NOT NULL DEFAULT 0,
    ledger_end         bigint  NOT NULL DEFAULT 0,
    published_offset   bigint  NOT NULL DEFAULT -1,
    published_position bytea
);
INSERT INTO participant DEFAULT VALUES;

CREATE TABLE epoch_grant (
    epoch      bigint PRIMARY KEY,
    replica    text NOT NULL,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Small and busy: a row lives from the admission of its commands until all of them are published. It holds a batch of
-- commands, column by column; `act_as` has the parties of each, one on a line. `ledger_end` is that of the moment of
-- admission: the completion of each command comes behind it. The arrays are hashes and ids: not worth compressing.
CREATE TABLE admission (
    number          bigint PRIMARY KEY,
    ledger_end      bigint   NOT NULL,
    change_ids      bytea[]  NOT NULL,
    user_ids        text[]   NOT NULL,
    command_ids     text[]   NOT NULL,
    act_as          text[]   NOT NULL,
    submission_ids  text[]   NOT NULL,
    tx_ids          bytea[]  NOT NULL,
    content_digests bytea[]  NOT NULL,
    submitted_us    bigint[] NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0,
    toast.autovacuum_vacuum_scale_factor = 0, toast.autovacuum_vacuum_threshold = 20000,
    toast.autovacuum_vacuum_cost_delay = 0
);
ALTER TABLE admission
    ALTER change_ids SET STORAGE EXTERNAL, ALTER user_ids SET STORAGE EXTERNAL, ALTER command_ids SET STORAGE EXTERNAL,
    ALTER act_as SET STORAGE EXTERNAL, ALTER submission_ids SET STORAGE EXTERNAL, ALTER tx_ids SET STORAGE EXTERNAL,
    ALTER content_digests SET STORAGE EXTERNAL, ALTER submitted_us SET STORAGE EXTERNAL;

-- Grows with the log: the commands that were accepted, so that none of them runs twice.
CREATE TABLE command_accepted (
    change_id        bytea PRIMARY KEY,
    tx_id            bytea  NOT NULL,
    content_digest   bytea  NOT NULL,
    notarised_offset bigint NOT NULL,
    accepted_us      bigint NOT NULL,
    ledger_offset    bigint NOT NULL
);

-- Grows with the log: the final word on every submission, in log order, dense.
CREATE TABLE completion (
    ledger_offset    bigint PRIMARY KEY,
    log_offset       bigint NOT NULL,
    change_id        bytea  NOT NULL,
    user_id          text   NOT NULL,
    command_id       text   NOT NULL,
    act_as           text[] NOT NULL,
    submission_id    text   NOT NULL,
    tx_id            bytea  NOT NULL,
    content_digest   bytea  NOT NULL,
    outcome          text   NOT NULL,
    notarised_offset bigint,
    recorded_us      bigint NOT NULL,
    detail           bytea  NOT NULL
);

-- Commands that were admitted and have no completion yet. An activation settles all of them.
CREATE VIEW command_in_flight AS
WITH landed AS MATERIALIZED (
    SELECT change_id, submission_id, max(ledger_offset) AS ledger_offset
      FROM completion
     WHERE ledger_offset > (SELECT min(ledger_end) FROM admission)
     GROUP BY change_id, submission_id
)
SELECT c.change_id, c.user_id, c.command_id, string_to_array(c.act_as, E'\n') AS act_as, c.submission_id, c.tx_id,
       c.content_digest, c.submitted_us, a.number AS admission
  FROM admission a
 CROSS JOIN LATERAL unnest(a.change_ids, a.user_ids, a.command_ids, a.act_as, a.submission_ids, a.tx_ids,
                           a.content_digests, a.submitted_us)
       AS c (change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, submitted_us)
 WHERE NOT EXISTS (
           SELECT FROM landed l
            WHERE l.change_id = c.change_id AND l.submission_id = c.submission_id AND l.ledger_offset > a.ledger_end
       );

-- For people.
CREATE VIEW leader_history AS
SELECT epoch, replica, granted_at, lead(granted_at) OVER (ORDER BY epoch) AS succeeded_at FROM epoch_grant;

CREATE VIEW published_state AS
SELECT p.ledger_id, p.topic_id, p.epoch, g.replica, g.granted_at, p.published_offset, p.ledger_end,
       (SELECT count(*) FROM command_in_flight) AS in_flight, (SELECT max(version) FROM schema_version) AS schema_version
  FROM participant p LEFT JOIN epoch_grant g USING (epoch);
