-- From the next activation on; neither is ever lowered, whoever comes second.
UPDATE participant
   SET record_format = greatest(record_format, %(records)s::int), rules_version = greatest(rules_version, %(rules)s::int)
RETURNING record_format, rules_version
