-- The record that a completion comes from. Rows below the bound are deleted later, and count as gone before.
SELECT log_offset FROM completion
WHERE ledger_offset = %(ledger_offset)s AND ledger_offset > (SELECT pruned_to FROM participant)
