DELETE FROM failover_pause RETURNING keeper, reason, paused_at
