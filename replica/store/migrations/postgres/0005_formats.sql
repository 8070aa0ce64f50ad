-- usable from version 1
--
-- What the next activation writes: record format and version of the rules. Raised by operators, never lowered.

ALTER TABLE participant
    ADD COLUMN record_format int NOT NULL DEFAULT 2,
    ADD COLUMN rules_version int NOT NULL DEFAULT 2;
