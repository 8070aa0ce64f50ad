UPDATE failover_pause SET reason = :reason
