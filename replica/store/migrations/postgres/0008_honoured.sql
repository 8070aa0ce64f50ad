-- usable from version 1
--
-- The deduplication period that was honoured for a submission: so many microseconds, or all above a ledger offset. Both are
-- NULL where it is not known: of completions that a release before published, or a replica that had not admitted them.
ALTER TABLE completion
    ADD COLUMN deduplication_us    bigint,
    ADD COLUMN deduplication_after bigint;
ALTER TABLE completion ALTER deduplication_us SET STATISTICS 0, ALTER deduplication_after SET STATISTICS 0;
