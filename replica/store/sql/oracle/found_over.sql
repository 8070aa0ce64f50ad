-- An activation whose holder never said that it ended is over all the same.
UPDATE epoch_grant SET found_over_at = SYS_EXTRACT_UTC(SYSTIMESTAMP), found_over_by = :replica
 WHERE ended_at IS NULL AND found_over_at IS NULL
