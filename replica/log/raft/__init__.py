"""The log node: a process of its own that keeps one copy of the log, and drives the consensus core in `ha/raft`."""
