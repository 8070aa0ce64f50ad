-- The topic that the database belongs to, from the first time on.
UPDATE participant SET topic_id = :topic_id WHERE topic_id IS NULL
