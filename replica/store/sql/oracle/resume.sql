DELETE FROM failover_pause
