INSERT INTO contradicted_mark (replica, mark, own_disk)
VALUES (%(replica)s, %(mark)s, %(own_disk)s)
ON CONFLICT (replica) DO UPDATE
   SET mark = excluded.mark, own_disk = excluded.own_disk, left_at = excluded.left_at
RETURNING replica
