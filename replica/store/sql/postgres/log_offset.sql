-- The record that a completion comes from.
SELECT log_offset FROM completion WHERE ledger_offset = %(ledger_offset)s
