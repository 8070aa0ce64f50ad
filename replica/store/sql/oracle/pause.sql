INSERT INTO failover_pause (keeper, reason, paused_at)
SELECT g.replica, :reason, SYS_EXTRACT_UTC(SYSTIMESTAMP) FROM participant p JOIN epoch_grant g ON g.epoch = p.epoch
 WHERE NOT EXISTS (SELECT 1 FROM failover_pause)
