"""A database whose defaults are as hostile as any operator's may be."""

from __future__ import annotations

import psycopg
from psycopg import sql

DEFAULTS = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-10",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "default_transaction_isolation": "serializable",
    "default_transaction_deferrable": "on",
    "client_encoding": "LATIN1",
    "client_min_messages": "error",
    "idle_session_timeout": "300ms",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
}


async def make_hostile(dsn: str) -> str:
    """Give the database, whose owner's this is, all of them; returns the same."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        name = sql.Identifier(connection.info.dbname)
        for setting, value in DEFAULTS.items():
            statement = sql.SQL("ALTER DATABASE {} SET {} = {}")
            await connection.execute(statement.format(name, sql.Identifier(setting), sql.Literal(value)))
    return dsn
