-- How far a search of details may go at a time: lengths are known without reading the details themselves.
SELECT max(ledger_offset)
  FROM (SELECT ledger_offset, sum(octet_length(detail)) OVER (ORDER BY ledger_offset) - octet_length(detail) AS bytes_before
          FROM completion
         WHERE ledger_offset > %(after)s AND ledger_offset <= %(until)s) AS range
 WHERE bytes_before < %(bytes_max)s
