-- Nothing is changed where fail-over is paused: that is ended first. To pause again changes the reason.
INSERT INTO failover_pause (keeper, reason) VALUES (%(keeper)s, %(reason)s)
ON CONFLICT (only_row) DO UPDATE SET reason = excluded.reason WHERE failover_pause.keeper = excluded.keeper
RETURNING keeper, reason, paused_at
