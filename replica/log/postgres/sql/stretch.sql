-- Batches that have any of the offsets from %(first)s to below %(end)s, oldest first, with the time of their append.
SELECT b.first_offset, (extract(EPOCH FROM b.appended_at) * 1000)::bigint AS appended_ms, b.records
FROM notary_log.log_batch AS b
WHERE
    b.first_offset < %(end)s
    AND b.first_offset >= coalesce(
        (SELECT max(s.first_offset) FROM notary_log.log_batch AS s WHERE s.first_offset <= %(first)s), %(first)s
    )
ORDER BY b.first_offset
LIMIT %(batches_max)s
