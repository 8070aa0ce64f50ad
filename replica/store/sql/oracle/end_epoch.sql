-- The holder's own word on the end of its activation. Said once; to say it again changes nothing.
UPDATE epoch_grant SET ended_at = SYS_EXTRACT_UTC(SYSTIMESTAMP), end_reason = :reason
 WHERE epoch = :epoch AND replica = :replica AND ended_at IS NULL
