-- Where the log begins and ends, and the batch that has offset %(start)s.
SELECT
    h.log_id::text,
    h.end_offset,
    (pg_current_wal_flush_lsn() - '0/0'::pg_lsn)::bigint AS position,
    (SELECT min(b.first_offset) FROM notary_log.log_batch AS b) AS first_offset,
    (SELECT b.next_offset FROM notary_log.log_batch AS b ORDER BY b.first_offset DESC LIMIT 1) AS batches_end,
    (SELECT max(b.first_offset) FROM notary_log.log_batch AS b WHERE b.first_offset <= %(start)s) AS batch_offset,
    h.partition_records
FROM notary_log.log_head AS h
