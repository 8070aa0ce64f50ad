-- Ledger offsets are dense and log offsets rise with them, so a search by halves needs no index of its own: thirty looks
-- at the primary key for a thousand million rows.
WITH RECURSIVE search (low, high) AS (
    SELECT pruned_to + 1, greatest(pruned_to, %(ledger_end)s::bigint) + 1 FROM participant
    UNION ALL
    SELECT CASE WHEN is_before THEN middle + 1 ELSE low END, CASE WHEN is_before THEN high ELSE middle END
      FROM search
     CROSS JOIN LATERAL (SELECT (low + high) / 2 AS middle) AS halves
     CROSS JOIN LATERAL (SELECT c.log_offset < %(log_offset)s AS is_before
                           FROM completion c WHERE c.ledger_offset = middle) AS looked
     WHERE low < high
)
SELECT low FROM search WHERE low = high
