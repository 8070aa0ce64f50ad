-- How far a search of details may go at a time: lengths are known without reading the details themselves.
SELECT MAX(ledger_offset)
  FROM (SELECT c.ledger_offset,
               SUM(COALESCE(DBMS_LOB.GETLENGTH(c.detail), 0)) OVER (ORDER BY c.ledger_offset)
                   - COALESCE(DBMS_LOB.GETLENGTH(c.detail), 0) AS bytes_before
          FROM completion c
         WHERE c.ledger_offset > :after_offset AND c.ledger_offset <= :until_offset)
 WHERE bytes_before < :bytes_max
