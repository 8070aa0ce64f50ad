-- usable from version 1
--
-- What the next activation writes: see the Postgres migration 0005.
ALTER TABLE participant ADD record_format NUMBER(10) DEFAULT 2 NOT NULL
/
ALTER TABLE participant ADD rules_version NUMBER(10) DEFAULT 2 NOT NULL
/
