-- House-keeping below the bound that the active has moved: some completions. Whoever runs it twice, or at the same time as another, deletes nothing more.
WITH oldest AS (
    SELECT ledger_offset FROM completion
     WHERE ledger_offset <= (SELECT pruned_to FROM participant)
     ORDER BY ledger_offset LIMIT %(limit)s
),
gone AS (
    DELETE FROM completion c USING oldest WHERE c.ledger_offset = oldest.ledger_offset RETURNING c.ledger_offset
)
SELECT count(*) FROM gone
