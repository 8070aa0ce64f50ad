"""The lock that makes one replica the active one, and the session that holds it."""
