DELETE FROM completion WHERE ledger_offset <= :up_to
