-- What deduplication kept of completions that go, which no longer counts; found by its key, as there is no other index.
DELETE FROM command_accepted
 WHERE ledger_offset <= :up_to
   AND change_id IN (SELECT change_id FROM completion WHERE ledger_offset <= :up_to)
