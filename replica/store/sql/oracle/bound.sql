-- The topic, what releases can use the schema, whether every text can be stored in it, and what to write.
SELECT (SELECT topic_id FROM participant),
       (SELECT MAX(version) FROM schema_version WHERE applied_at IS NOT NULL),
       (SELECT MAX(usable_from) FROM schema_version),
       (SELECT value FROM nls_database_parameters WHERE parameter = 'NLS_CHARACTERSET'),
       (SELECT record_format FROM participant),
       (SELECT rules_version FROM participant)
  FROM dual
