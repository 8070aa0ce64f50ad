-- A head only ever moves forward, so this may be repeated and may come late.
INSERT INTO archive_head (archive_id, lines, hash, last_offset)
VALUES (%(archive_id)s, %(lines)s, %(hash)s, %(last_offset)s)
ON CONFLICT (archive_id) DO UPDATE
   SET lines = excluded.lines, hash = excluded.hash, last_offset = excluded.last_offset, recorded_at = clock_timestamp()
 WHERE archive_head.lines < excluded.lines
