-- usable from version 1
--
-- Why each reign ended, and a pause of fail-over: see the Postgres migration of this name.
ALTER TABLE epoch_grant ADD ended_at TIMESTAMP(6)
/
ALTER TABLE epoch_grant ADD end_reason VARCHAR2(1000 BYTE)
/
ALTER TABLE epoch_grant ADD found_over_at TIMESTAMP(6)
/
ALTER TABLE epoch_grant ADD found_over_by VARCHAR2(255 BYTE)
/
CREATE TABLE failover_pause (
    only_row  NUMBER(1)           DEFAULT 1 NOT NULL,
    keeper    VARCHAR2(255 BYTE)  NOT NULL,
    reason    VARCHAR2(1000 BYTE) NOT NULL,
    paused_at TIMESTAMP(6)        NOT NULL,
    CONSTRAINT failover_pause_pk PRIMARY KEY (only_row)
)
/
CREATE OR REPLACE VIEW leader_history AS
SELECT epoch, replica, granted_at, LEAD(granted_at) OVER (ORDER BY epoch) AS succeeded_at,
       ended_at, end_reason, found_over_at, found_over_by
  FROM epoch_grant
/
