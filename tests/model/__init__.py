"""An executable model of the protocol, small enough to look at every interleaving."""
