-- The newest activations, newest first.
SELECT epoch, replica, granted_at, succeeded_at, ended_at, end_reason, found_over_at, found_over_by
  FROM leader_history ORDER BY epoch DESC LIMIT %(limit)s::bigint
