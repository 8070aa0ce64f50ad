SELECT line FROM operator_trail WHERE number_ > :after_ ORDER BY number_ FETCH FIRST :row_count ROWS ONLY
