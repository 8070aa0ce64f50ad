UPDATE participant SET ledger_end = :ledger_end, published_offset = :published_offset, published_position = :published_position
