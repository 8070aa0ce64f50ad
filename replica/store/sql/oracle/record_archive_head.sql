-- A head only ever moves forward, so this may be repeated and may come late.
MERGE INTO archive_head a
USING (SELECT :archive_id AS archive_id, :lines AS lines, :hash AS hash, :last_offset AS last_offset FROM dual) h
   ON (a.archive_id = h.archive_id)
 WHEN MATCHED THEN UPDATE
      SET a.lines = h.lines, a.hash = h.hash, a.last_offset = h.last_offset
    WHERE a.lines < h.lines
 WHEN NOT MATCHED THEN
      INSERT (archive_id, lines, hash, last_offset) VALUES (h.archive_id, h.lines, h.hash, h.last_offset)
