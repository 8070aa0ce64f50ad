-- usable from version 1
--
-- The participant's shared state on Oracle 19c or newer. Times are microseconds since 1970, UTC, or TIMESTAMP in UTC. No
-- sequence anywhere: a rollback leaves a gap in one, so ledger offsets come from a counter in the one row of participant.
-- An empty text or RAW is NULL here: only `detail` may be one. A line with a slash ends a statement, as in SQL*Plus. What
-- the tables are for: see the Postgres migration of this name.

CREATE TABLE participant (
    only_row           NUMBER(1)  DEFAULT 1 NOT NULL,
    ledger_id          RAW(16)    NOT NULL,
    topic_id           VARCHAR2(255 BYTE),
    epoch              NUMBER(19) DEFAULT 0 NOT NULL,
    ledger_end         NUMBER(19) DEFAULT 0 NOT NULL,
    published_offset   NUMBER(19) DEFAULT -1 NOT NULL,
    published_position BLOB,
    pruned_to          NUMBER(19) DEFAULT 0 NOT NULL,
    record_format      NUMBER(10) DEFAULT 2 NOT NULL,
    rules_version      NUMBER(10) DEFAULT 3 NOT NULL,
    CONSTRAINT participant_pk PRIMARY KEY (only_row),
    CONSTRAINT participant_one_row CHECK (only_row = 1)
)
/
INSERT INTO participant (only_row, ledger_id) VALUES (1, SYS_GUID())
/
CREATE TABLE epoch_grant (
    epoch         NUMBER(19)         NOT NULL,
    replica       VARCHAR2(255 BYTE) NOT NULL,
    granted_at    TIMESTAMP(6)       NOT NULL,
    ended_at      TIMESTAMP(6),
    end_reason    VARCHAR2(1000 BYTE),
    found_over_at TIMESTAMP(6),
    found_over_by VARCHAR2(255 BYTE),
    CONSTRAINT epoch_grant_pk PRIMARY KEY (epoch)
)
/
-- Written by the lock session: how often the holder of a lock gave it up on purpose, and the last one's note of it: who,
-- for which replica (NULL for whoever comes), and in which session (AUDSID).
CREATE TABLE lock_release (
    lock_id          NUMBER(10) NOT NULL,
    releases         NUMBER(19) NOT NULL,
    released_by      VARCHAR2(255 BYTE) NOT NULL,
    released_for     VARCHAR2(255 BYTE),
    released_session NUMBER NOT NULL,
    CONSTRAINT lock_release_pk PRIMARY KEY (lock_id)
)
/
-- Grows with the log: the final word on every submission, in log order, dense. `act_as` has the parties, one on a line;
-- sixteen long names do not fit a VARCHAR2.
CREATE TABLE completion (
    ledger_offset       NUMBER(19)         NOT NULL,
    log_offset          NUMBER(19)         NOT NULL,
    change_id           RAW(32)            NOT NULL,
    user_id             VARCHAR2(255 BYTE) NOT NULL,
    command_id          VARCHAR2(255 BYTE) NOT NULL,
    submission_id       VARCHAR2(255 BYTE) NOT NULL,
    tx_id               RAW(32)            NOT NULL,
    content_digest      RAW(32)            NOT NULL,
    outcome             VARCHAR2(64 BYTE)  NOT NULL,
    notarised_offset    NUMBER(19),
    recorded_us         NUMBER(19)         NOT NULL,
    act_as              CLOB               NOT NULL,
    detail              BLOB,
    deduplication_us    NUMBER(19),
    deduplication_after NUMBER(19),
    CONSTRAINT completion_pk PRIMARY KEY (ledger_offset)
)
/
CREATE TABLE failover_pause (
    only_row  NUMBER(1)           DEFAULT 1 NOT NULL,
    keeper    VARCHAR2(255 BYTE)  NOT NULL,
    reason    VARCHAR2(1000 BYTE) NOT NULL,
    paused_at TIMESTAMP(6)        NOT NULL,
    CONSTRAINT failover_pause_pk PRIMARY KEY (only_row)
)
/
CREATE TABLE archive_head (
    archive_id  VARCHAR2(255 BYTE) NOT NULL,
    lines       NUMBER(19)         NOT NULL,
    hash        VARCHAR2(255 BYTE) NOT NULL,
    last_offset NUMBER(19)         NOT NULL,
    CONSTRAINT archive_head_pk PRIMARY KEY (archive_id)
)
/
CREATE TABLE operator_trail (
    number_ NUMBER(19)           NOT NULL,
    line    VARCHAR2(4000 BYTE)  NOT NULL,
    CONSTRAINT operator_trail_pk PRIMARY KEY (number_)
)
/
-- The mark with which a replica ended: see the Postgres migration of this name. `digest`: SHA-256 of the mark.
CREATE TABLE contradicted_mark (
    replica  VARCHAR2(255 BYTE) NOT NULL,
    mark     BLOB               NOT NULL,
    digest   RAW(32)            NOT NULL,
    own_disk NUMBER(1)          NOT NULL,
    CONSTRAINT contradicted_mark_pk PRIMARY KEY (replica)
)
/
-- For people.
CREATE OR REPLACE VIEW leader_history AS
SELECT epoch, replica, granted_at, LEAD(granted_at) OVER (ORDER BY epoch) AS succeeded_at,
       ended_at, end_reason, found_over_at, found_over_by
  FROM epoch_grant
/
CREATE OR REPLACE VIEW published_state AS
SELECT LOWER(RAWTOHEX(p.ledger_id)) AS ledger_id, p.topic_id, p.epoch, g.replica, g.granted_at, p.published_offset,
       p.ledger_end, (SELECT COALESCE(MAX(version), 0) FROM schema_version WHERE applied_at IS NOT NULL) AS schema_version
  FROM participant p
  LEFT JOIN epoch_grant g ON g.epoch = p.epoch
/
