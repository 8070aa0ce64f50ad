-- A topic that was restored becomes the log's: same records, another id.
UPDATE participant SET topic_id = %(topic_id)s, published_position = %(position)s
 WHERE topic_id IS NOT DISTINCT FROM %(known)s AND published_offset = %(offset)s
