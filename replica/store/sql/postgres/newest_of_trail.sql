SELECT line FROM operator_trail ORDER BY number DESC LIMIT 1
