SELECT 1 FROM failover_pause WHERE keeper = %(keeper)s
