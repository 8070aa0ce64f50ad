SELECT change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, submitted_us
  FROM command_in_flight
 ORDER BY submitted_us, change_id
 FETCH FIRST :row_count ROWS ONLY
