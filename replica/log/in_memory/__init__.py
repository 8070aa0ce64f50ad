"""A request log in the memory of one process, for tests (`log.kind = "memory"`). It ends with that process."""
