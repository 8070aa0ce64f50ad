-- Those in a range that a state's history is made of, as many as bytes_max holds, and where the last of all of them is. Read
-- row by row: it is asked for seldom, and an index of it would cost every publication.
SELECT ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, outcome,
       notarised_offset, recorded_us, detail, deduplication_us, deduplication_after, last_found
  FROM (SELECT *, sum(octet_length(detail)) OVER (ORDER BY ledger_offset) - octet_length(detail) AS bytes_before,
               row_number() OVER (ORDER BY ledger_offset) AS place, max(ledger_offset) OVER () AS last_found
          FROM completion
         WHERE ledger_offset > %(after)s AND ledger_offset <= %(until)s
           AND (tx_id = %(tx_id)s OR (outcome = 'STATE_CONFLICT' AND position(%(state)s::bytea IN detail) > 0))) AS found
 WHERE bytes_before < %(bytes_max)s AND place <= %(row_count)s
 ORDER BY ledger_offset
