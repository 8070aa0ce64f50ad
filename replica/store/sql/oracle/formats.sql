SELECT record_format, rules_version FROM participant
