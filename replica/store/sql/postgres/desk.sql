-- The server's clock, how far completions are published and pruned, and whether no command is pending: of one moment.
SELECT (extract(epoch from clock_timestamp()) * 1000000)::bigint, published_position, ledger_end, pruned_to,
       NOT EXISTS (SELECT FROM admission)
  FROM participant
