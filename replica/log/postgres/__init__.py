"""The request log on Postgres: one head row gives the order. docs/decisions/0013 has the argument."""
