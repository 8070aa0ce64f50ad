DELETE FROM failover_pause WHERE keeper <> %(nobody)s RETURNING keeper, reason, paused_at
