-- A page of completions. A conflict's detail takes up to 0.8 MB, so a page ends where its details get too large.
SELECT ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, outcome,
       notarised_offset, recorded_us, detail, deduplication_us, deduplication_after
  FROM (SELECT *, sum(octet_length(detail)) OVER (ORDER BY ledger_offset) - octet_length(detail) AS bytes_before
          FROM completion
         WHERE ledger_offset > %(after)s AND ledger_offset <= %(until)s) AS page
 WHERE bytes_before < %(bytes_max)s
 ORDER BY ledger_offset
