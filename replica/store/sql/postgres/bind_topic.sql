UPDATE participant SET topic_id = coalesce(topic_id, %s) RETURNING topic_id
