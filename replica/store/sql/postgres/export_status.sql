SELECT topic_id, published_offset, ledger_end, pruned_to
  FROM participant
