SELECT replica, mark, own_disk FROM contradicted_mark ORDER BY replica FETCH FIRST :row_count ROWS ONLY
