-- The server's clock, and how far completions are published and pruned: of one moment.
SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint, published_position, ledger_end, pruned_to
  FROM participant
