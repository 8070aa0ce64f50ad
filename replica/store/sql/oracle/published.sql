-- Where the time of the bound is not known, it is that of the oldest completion above it; NULL if there is none.
SELECT published_position, ledger_end, pruned_to,
       CASE WHEN pruned_us_of = pruned_to THEN pruned_us
            ELSE (SELECT c.recorded_us FROM completion c WHERE c.ledger_offset = pruned_to + 1)
       END AS pruned_us
  FROM participant
