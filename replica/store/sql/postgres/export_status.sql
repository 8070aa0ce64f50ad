SELECT topic_id, published_offset, ledger_end, pruned_to,
       (SELECT (extract(epoch FROM clock_timestamp() - min(granted_at)) * 1000000)::bigint FROM epoch_grant) AS age_us
  FROM participant
