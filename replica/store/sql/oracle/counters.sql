-- The counters, locked until the transaction ends: whoever reads them here is the one to move them.
SELECT epoch, ledger_end, published_offset, pruned_to FROM participant FOR UPDATE
