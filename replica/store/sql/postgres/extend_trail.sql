-- One line for each number, without a gap: of two writers at once, one finds the number taken and comes again.
INSERT INTO operator_trail (number, line)
SELECT %(number)s::bigint, %(line)s
 WHERE %(number)s::bigint = (SELECT coalesce(max(number), 0) + 1 FROM operator_trail)
ON CONFLICT DO NOTHING
RETURNING number
