-- usable from version 1
--
-- The operators' trail: one line of JSON for each entry, signed, with the hash of the line before. Lines are in ASCII.
-- Roles that write add lines, and may neither change nor delete any.

CREATE TABLE operator_trail (
    number     bigint      PRIMARY KEY CHECK (number > 0),
    line       text        NOT NULL,
    written_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
