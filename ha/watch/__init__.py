"""`notary watch`: keeps the replicas of one machine running, where neither systemd nor Kubernetes does."""
