SELECT replica, mark, own_disk FROM contradicted_mark ORDER BY replica LIMIT %(limit)s
