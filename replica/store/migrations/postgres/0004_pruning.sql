-- usable from version 1
--
-- Completions up to this ledger offset may be deleted. The active moves it, on the lock session; deleting what is below
-- is house-keeping, for a role that replicas do not log in as.

ALTER TABLE participant ADD COLUMN pruned_to bigint NOT NULL DEFAULT 0;
