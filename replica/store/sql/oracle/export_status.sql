SELECT topic_id, published_offset, ledger_end, pruned_to, (SELECT MIN(granted_at) FROM epoch_grant),
       SYS_EXTRACT_UTC(SYSTIMESTAMP)
  FROM participant
