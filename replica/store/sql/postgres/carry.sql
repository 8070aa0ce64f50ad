-- Carries what is in flight past the completions up to `high`: commands that have theirs there are dropped, the others are
-- admitted anew, in one row, as of the ledger end `high`. So whoever asks next need not look at those completions again.
WITH old AS (
    DELETE FROM admission WHERE ledger_end < %(high)s::bigint
    RETURNING ledger_end, change_ids, user_ids, command_ids, act_as, submission_ids, tx_ids, content_digests, submitted_us
),
landed AS MATERIALIZED (
    SELECT change_id, submission_id, max(ledger_offset) AS ledger_offset
      FROM completion
     WHERE ledger_offset > %(low)s::bigint AND ledger_offset <= %(high)s::bigint
     GROUP BY change_id, submission_id
),
kept AS (
    SELECT c.*
      FROM old
     CROSS JOIN LATERAL unnest(change_ids, user_ids, command_ids, act_as, submission_ids, tx_ids, content_digests,
                               submitted_us)
           AS c (change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, submitted_us)
     WHERE NOT EXISTS (
               SELECT FROM landed l
                WHERE l.change_id = c.change_id AND l.submission_id = c.submission_id
                  AND l.ledger_offset > old.ledger_end
           )
),
newest AS (
    SELECT max(number) AS number FROM admission
),
carried AS (
    INSERT INTO admission (number, ledger_end, change_ids, user_ids, command_ids, act_as, submission_ids, tx_ids,
                           content_digests, submitted_us)
    SELECT newest.number + 1, %(high)s::bigint, k.*
      FROM newest,
           (SELECT array_agg(change_id) AS change_ids, array_agg(user_id), array_agg(command_id), array_agg(act_as),
                   array_agg(submission_id), array_agg(tx_id), array_agg(content_digest), array_agg(submitted_us)
              FROM kept) AS k
     WHERE k.change_ids IS NOT NULL
)
SELECT number + 1 FROM newest
