UPDATE participant SET ledger_end = :ledger_end, pruned_to = :pruned_to, published_offset = :published_offset, published_position = :published_position
