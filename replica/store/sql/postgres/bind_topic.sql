-- The topic that the database belongs to, from the first time on, what releases can use its schema, whether every text
-- can be stored in it, what to write.
WITH bound AS (UPDATE participant SET topic_id = %(topic_id)s WHERE topic_id IS NULL)
SELECT coalesce(topic_id, %(topic_id)s), (SELECT max(version) FROM schema_version),
       (SELECT max(usable_from) FROM schema_version),
       current_setting('server_encoding'), record_format, rules_version
  FROM participant
