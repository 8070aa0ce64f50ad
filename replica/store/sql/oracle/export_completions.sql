SELECT ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, outcome,
       notarised_offset, recorded_us, detail
  FROM completion
 WHERE ledger_offset > :after_offset AND ledger_offset <= :until_offset
 ORDER BY ledger_offset
 FETCH FIRST :row_count ROWS ONLY
