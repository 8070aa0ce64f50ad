-- The next epoch. An activation whose holder never said that it ended is noted as over.
WITH raised AS (
    UPDATE participant SET epoch = greatest(epoch, %(above)s::bigint) + 1 RETURNING epoch
),
granted AS (
    INSERT INTO epoch_grant (epoch, replica) SELECT epoch, %(replica)s FROM raised
),
found_over AS (
    UPDATE epoch_grant SET found_over_at = clock_timestamp(), found_over_by = %(replica)s
     WHERE ended_at IS NULL AND found_over_at IS NULL
)
SELECT epoch FROM raised
