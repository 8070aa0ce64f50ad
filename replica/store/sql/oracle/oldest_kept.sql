-- The oldest completion that is still there, and the bound that the active has moved.
SELECT (SELECT MIN(ledger_offset) FROM completion), pruned_to FROM participant
