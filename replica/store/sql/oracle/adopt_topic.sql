UPDATE participant SET topic_id = :topic_id, published_position = :published_position
