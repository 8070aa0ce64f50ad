WITH raised AS (UPDATE participant SET epoch = greatest(epoch, %s::bigint) + 1 RETURNING epoch),
granted AS (INSERT INTO epoch_grant (epoch, replica) SELECT epoch, %s FROM raised)
SELECT epoch FROM raised
