-- usable from version 1
--
-- When the newest completion that may be gone was recorded: deduplication remembers every command that was accepted
-- later. It is of the bound that stands beside it: a release that does not know the column moves the bound alone.
ALTER TABLE participant
    ADD COLUMN pruned_us    bigint NOT NULL DEFAULT 0,
    ADD COLUMN pruned_us_of bigint NOT NULL DEFAULT 0;
