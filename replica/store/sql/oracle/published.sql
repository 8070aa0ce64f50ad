SELECT published_position, ledger_end FROM participant
