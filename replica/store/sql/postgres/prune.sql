-- Moves the bound up to which completions may be deleted, if that is safe: what a resubmission may still ask for stays.
-- The times that were judged at rise with the ledger offsets, so a search by halves finds the newest that is old enough.
WITH RECURSIVE search (low, high) AS (
    SELECT pruned_to + 1, ledger_end + 1 FROM participant
    UNION ALL
    SELECT CASE WHEN is_old THEN middle + 1 ELSE low END, CASE WHEN is_old THEN high ELSE middle END
      FROM search
     CROSS JOIN LATERAL (SELECT (low + high) / 2 AS middle) AS halves
     CROSS JOIN LATERAL (SELECT c.recorded_us < %(recorded_before_us)s AS is_old
                           FROM completion c WHERE c.ledger_offset = middle) AS looked
     WHERE low < high
),
safe AS (
    SELECT low - 1 AS safe_to FROM search WHERE low = high
),
moved AS (
    UPDATE participant
       SET pruned_to = coalesce(%(up_to)s::bigint, safe_to)
      FROM safe
     WHERE coalesce(%(up_to)s::bigint, safe_to) > pruned_to AND coalesce(%(up_to)s::bigint, safe_to) <= safe_to
    RETURNING pruned_to
)
SELECT coalesce((SELECT pruned_to FROM moved), (SELECT pruned_to FROM participant)), (SELECT safe_to FROM safe)
