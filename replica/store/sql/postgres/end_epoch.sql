-- The holder's own word on the end of its activation, `age_s` seconds after it. Said once; to say it again changes nothing.
UPDATE epoch_grant
   SET ended_at = clock_timestamp() - make_interval(secs => %(age_s)s::float8), end_reason = %(reason)s
 WHERE epoch = %(epoch)s::bigint AND replica = %(replica)s AND ended_at IS NULL
RETURNING epoch
