SELECT recorded_us FROM completion WHERE ledger_offset = :ledger_offset
