SELECT line FROM operator_trail WHERE number > %(after)s::bigint ORDER BY number LIMIT %(limit)s::bigint
