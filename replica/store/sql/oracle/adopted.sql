-- What an operator changes, all replicas down: locked until the transaction ends.
SELECT topic_id, published_position FROM participant FOR UPDATE
