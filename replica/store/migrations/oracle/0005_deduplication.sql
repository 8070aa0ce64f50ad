-- usable from version 1
--
-- When the newest completion that may be gone was recorded: see the Postgres migration of this name.
ALTER TABLE participant ADD pruned_us NUMBER(19) DEFAULT 0 NOT NULL
/
ALTER TABLE participant ADD pruned_us_of NUMBER(19) DEFAULT 0 NOT NULL
/
