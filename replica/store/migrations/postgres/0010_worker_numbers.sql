-- usable from version 1
--
-- How many ranges of sequence numbers were given away to workers (docs/decisions/0021-workers.md). It never falls.
CREATE TABLE worker_numbers (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    drawn    bigint  NOT NULL DEFAULT 0 CHECK (drawn >= 0)
);
INSERT INTO worker_numbers DEFAULT VALUES;
