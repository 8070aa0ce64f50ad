-- usable from version 1
--
-- The deduplication period that was honoured for a submission: see the Postgres migration of this name.
ALTER TABLE completion ADD deduplication_us NUMBER(19)
/
ALTER TABLE completion ADD deduplication_after NUMBER(19)
/
