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

-- Small and busy: a row lives from admission to completion. An activation reads all of it.
CREATE TABLE command_in_flight (
    change_id      bytea PRIMARY KEY,
    user_id        text   NOT NULL,
    command_id     text   NOT NULL,
    act_as         text[] NOT NULL,
    submission_id  text   NOT NULL,
    tx_id          bytea  NOT NULL,
    content_digest bytea  NOT NULL,
    submitted_us   bigint NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000, autovacuum_vacuum_cost_delay = 0);

-- Grows with the log: the commands that were accepted, so that none of them runs twice.
CREATE TABLE command_accepted (
    change_id        bytea PRIMARY KEY,
    tx_id            bytea  NOT NULL,
    content_digest   bytea  NOT NULL,
    notarised_offset bigint NOT NULL,
    accepted_us      bigint NOT NULL,
    ledger_offset    bigint NOT NULL
);

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

-- For people.
CREATE VIEW leader_history AS
SELECT epoch, replica, granted_at, lead(granted_at) OVER (ORDER BY epoch) AS succeeded_at FROM epoch_grant;
