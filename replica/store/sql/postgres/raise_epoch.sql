-- The next epoch, and the newest number of an admission.
WITH raised AS (
    UPDATE participant SET epoch = greatest(epoch, %(above)s::bigint) + 1 RETURNING epoch
),
granted AS (
    INSERT INTO epoch_grant (epoch, replica) SELECT epoch, %(replica)s FROM raised
)
SELECT epoch, (SELECT coalesce(max(number), 0) FROM admission) FROM raised
