SELECT keeper, reason, paused_at FROM failover_pause
