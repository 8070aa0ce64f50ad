-- A page of completions. A conflict's detail takes up to 0.8 MB, so a page ends where its details get too large.
SELECT ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, outcome,
       notarised_offset, recorded_us, detail, deduplication_us, deduplication_after
  FROM (SELECT c.*,
               SUM(COALESCE(DBMS_LOB.GETLENGTH(c.detail), 0)) OVER (ORDER BY c.ledger_offset)
                   - COALESCE(DBMS_LOB.GETLENGTH(c.detail), 0) AS bytes_before
          FROM completion c
         WHERE c.ledger_offset > :after_offset AND c.ledger_offset <= :until_offset)
 WHERE bytes_before < :bytes_max
 ORDER BY ledger_offset
