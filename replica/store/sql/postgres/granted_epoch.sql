-- The newest epoch: what another session was granted fences what this one would still write.
SELECT epoch FROM participant
