-- Returns the commands that were recorded; all of them, unless some are in flight or accepted already.
WITH asked AS (
    SELECT * FROM unnest(%b::bytea[], %b::text[], %b::text[], %b::text[], %b::text[], %b::bytea[], %b::bytea[], %b::bigint[])
        AS t (change_id, user_id, command_id, act_as, submission_id, tx_id, content_digest, submitted_us)
)
INSERT INTO command_in_flight
SELECT change_id, user_id, command_id, string_to_array(act_as, E'\n'), submission_id, tx_id, content_digest, submitted_us
  FROM asked
 WHERE NOT EXISTS (
           SELECT FROM command_accepted a WHERE a.change_id = asked.change_id AND a.accepted_us >= %b::bigint
       )
ON CONFLICT (change_id) DO NOTHING
RETURNING change_id
