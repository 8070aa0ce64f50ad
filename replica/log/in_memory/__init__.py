"""A request log in the memory of one process, for tests (`log.kind = "memory"`): all of it goes with the process."""
