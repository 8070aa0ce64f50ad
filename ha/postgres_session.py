"""What every session on Postgres of ours rests on, whatever role, database or server has as its defaults.

`default_transaction_read_only` is left as it is: who sets it does not want writes there, and the lock refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping

ENCODING = "UTF8"  # of the database and of every connection: texts are Unicode, and are returned unchanged
SETTINGS = {
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "default_transaction_isolation": r"read\ committed",
    "default_transaction_deferrable": "off",
    "client_min_messages": "warning",  # a commit that may lack its standby says so in a warning
    "idle_session_timeout": "0",
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
}


def session_options(given: object, ours: Mapping[str, object] | None = None) -> str:
    """The parameter `options` of a connection: the operator's, `SETTINGS`, and then `ours`; the last one counts."""
    settings = SETTINGS | {key: str(value) for key, value in (ours or {}).items()}
    return " ".join([*filter(None, [str(given or "")]), *(f"-c {key}={value}" for key, value in settings.items())])
