-- The topic, what releases can use the schema, and whether every text can be stored in it.
SELECT (SELECT topic_id FROM participant),
       (SELECT MAX(version) FROM schema_version WHERE applied_at IS NOT NULL),
       (SELECT MAX(usable_from) FROM schema_version),
       (SELECT value FROM nls_database_parameters WHERE parameter = 'NLS_CHARACTERSET')
  FROM dual
