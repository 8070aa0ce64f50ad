-- Those in a range that a state's history is made of, as many as bytes_max holds, and where the last of all of them is. Read
-- row by row: it is asked for seldom, and an index of it would cost every publication.
SELECT ledger_offset, log_offset, change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, outcome,
       notarised_offset, recorded_us, detail, deduplication_us, deduplication_after, last_found
  FROM (SELECT c.*,
               SUM(COALESCE(DBMS_LOB.GETLENGTH(c.detail), 0)) OVER (ORDER BY c.ledger_offset)
                   - COALESCE(DBMS_LOB.GETLENGTH(c.detail), 0) AS bytes_before,
               ROW_NUMBER() OVER (ORDER BY c.ledger_offset) AS place,
               MAX(c.ledger_offset) OVER () AS last_found
          FROM completion c
         WHERE c.ledger_offset > :after_offset AND c.ledger_offset <= :until_offset
           AND (c.tx_id = :tx_id OR (c.outcome = 'STATE_CONFLICT' AND DBMS_LOB.INSTR(c.detail, :state) > 0)))
 WHERE bytes_before < :bytes_max AND place <= :row_count
 ORDER BY ledger_offset
