SELECT ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, outcome,
       notarised_offset, recorded_us, detail
  FROM completion
 WHERE ledger_offset > %s AND ledger_offset <= %s
 ORDER BY ledger_offset LIMIT %s
