-- usable from version 1
--
-- Why each reign ended. `ended_at` and `end_reason` are the holder's own words: said on the lock session before it let
-- go, or later, once it reaches the database again. A holder that is killed says nothing, so its successor notes, with
-- the grant of its own epoch, that it found the reign over: the latest moment at which it can have ended.
ALTER TABLE epoch_grant
    ADD COLUMN ended_at      timestamptz,
    ADD COLUMN end_reason    text,
    ADD COLUMN found_over_at timestamptz,
    ADD COLUMN found_over_by text;

-- One row while operators have paused fail-over: nobody but the keeper asks for the lock.
CREATE TABLE failover_pause (
    only_row  boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    keeper    text        NOT NULL,
    reason    text        NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE OR REPLACE VIEW leader_history AS
SELECT epoch, replica, granted_at, lead(granted_at) OVER (ORDER BY epoch) AS succeeded_at,
       ended_at, end_reason, found_over_at, found_over_by
  FROM epoch_grant;
