DELETE FROM failover_pause WHERE keeper = %(keeper)s RETURNING keeper, reason, paused_at
