-- The head, and what is in the log from a batch on. One snapshot; the position is taken after it, so every commit that
-- the snapshot shows has its end at or below the position.
SELECT
    h.log_id::text,
    h.end_offset,
    (SELECT (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint) AS position,
    CASE WHEN %(held)s OR b.first_offset IS NOT NULL THEN (SELECT notary_log.flushed(%(standbys)s)) END AS flushed,
    b.first_offset,
    b.next_offset,
    b.records
FROM (
    -- The newest version first: see notary_log.append. A snapshot that somebody keeps open keeps all others.
    SELECT log_id, end_offset FROM notary_log.log_head ORDER BY only_row DESC LIMIT 1
) AS h
LEFT JOIN LATERAL (
    SELECT s.first_offset, s.next_offset, s.records
    FROM (
        SELECT
            n.first_offset, n.next_offset, n.records,
            sum(pg_column_size(n.records)) OVER (ORDER BY n.first_offset) - pg_column_size(n.records) AS bytes_before
        FROM (
            SELECT l.first_offset, l.next_offset, l.records
            FROM notary_log.log_batch AS l
            WHERE l.first_offset >= %(start)s AND l.first_offset < h.end_offset
            ORDER BY l.first_offset
            LIMIT %(batches_max)s
        ) AS n
    ) AS s
    WHERE s.bytes_before < %(bytes_max)s
) AS b ON true
ORDER BY b.first_offset
