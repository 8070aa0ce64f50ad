"""How an Oracle database is named: `oracle://USER[:PASSWORD]@CONNECT_STRING[#SCHEMA]`.

User and password are percent-encoded where they have a colon, an at sign or a percent sign. The text after the last at
sign is an Easy Connect string or a connect descriptor, and is passed on unchanged. SCHEMA is the owner of the tables,
where that is not the user: for users that only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, unquote

from replica.notary.errors import ConfigError

ORACLE = "oracle://"


def parse_oracle(conninfo: str) -> dict[str, str]:
    """user and dsn, perhaps password and schema. Raises ConfigError."""
    login, at, target = conninfo.removeprefix(ORACLE).rpartition("@")
    user, colon, password = login.partition(":")
    dsn, _, schema = target.partition("#")
    if not (at and user and dsn):
        raise ConfigError(
            "an Oracle connection string is oracle://USER@HOST:PORT/SERVICE, the password in its own file"
        )
    parsed = {"user": unquote(user), "dsn": dsn}
    if colon:
        parsed["password"] = unquote(password)
    if schema:
        parsed["schema"] = schema
    return parsed


def render_oracle(login: Mapping[str, str]) -> str:
    """The connection string of a login."""
    password = f":{quote(login['password'], safe='*')}" if "password" in login else ""
    schema = f"#{login['schema']}" if "schema" in login else ""
    return f"{ORACLE}{quote(login['user'], safe='')}{password}@{login['dsn']}{schema}"
