-- Nobody but the holder of the newest epoch asks for the lock from now on. To pause again changes the reason. A pause of
-- service stays as it is.
INSERT INTO failover_pause (keeper, reason)
SELECT g.replica, %(reason)s FROM participant p JOIN epoch_grant g USING (epoch)
ON CONFLICT (only_row) DO UPDATE SET reason = excluded.reason WHERE failover_pause.keeper <> %(nobody)s
RETURNING keeper, reason, paused_at
