-- usable from version 1
--
-- How long the archive's manifest was when it was last written, and the hash of its last line: without it, nobody
-- could tell an archive whose end was cut off from one that never had more. Written by the archiver, idempotent.

CREATE TABLE archive_head (
    archive_id  text        PRIMARY KEY,
    lines       bigint      NOT NULL,
    hash        text        NOT NULL,
    last_offset bigint      NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
