DELETE FROM contradicted_mark
 WHERE replica = %(replica)s AND mark = %(mark)s AND own_disk = %(own_disk)s
RETURNING replica
