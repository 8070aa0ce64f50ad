SELECT ledger_id::text, topic_id, epoch, replica, granted_at, published_offset, ledger_end, schema_version
  FROM published_state
