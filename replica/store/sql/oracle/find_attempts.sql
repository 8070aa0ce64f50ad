-- Those in a range that a state's history is made of. Read row by row: it is asked for seldom, and an index of it would
-- cost every publication.
SELECT ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, outcome,
       notarised_offset, recorded_us, detail
  FROM completion
 WHERE ledger_offset > :after_offset AND ledger_offset <= :until_offset
   AND (tx_id = :tx_id OR (outcome = 'STATE_CONFLICT' AND DBMS_LOB.INSTR(detail, :state) > 0))
 ORDER BY ledger_offset
 FETCH FIRST :row_count ROWS ONLY
