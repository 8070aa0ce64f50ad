SELECT ledger_id, topic_id, epoch, replica, granted_at, published_offset, ledger_end, in_flight, schema_version
  FROM published_state
