SELECT published_position, ledger_end, pruned_to FROM participant
