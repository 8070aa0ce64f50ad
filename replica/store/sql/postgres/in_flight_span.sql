-- After which ledger offset completions determine what is in flight (NULL: nothing was admitted), and where the ledger ends.
SELECT (SELECT min(ledger_end) FROM admission), ledger_end FROM participant
