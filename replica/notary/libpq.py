"""libpq's connection strings: what they say, and whether they leave the machine unprotected. Needs no connection."""

from __future__ import annotations

from replica.notary.errors import ConfigError
from replica.notary.loopback import is_loopback


def parse_conninfo(conninfo: str) -> dict[str, str]:
    """What a connection string says, by name. Raises ConfigError when it cannot be understood."""
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except ProgrammingError as error:
        raise ConfigError(f"no libpq connection string: {str(error).strip()}") from None


def hosts_in_clear(conninfo: str) -> list[str]:
    """The hosts that would be talked to without a verified certificate; Unix sockets among them."""
    given = parse_conninfo(conninfo)
    if given.get("sslmode") == "verify-full":
        return []
    return [host for name in ("host", "hostaddr") for host in given.get(name, "").split(",") if host]


def is_local(host: str) -> bool:
    """Whether what is sent to this host stays on the machine: a loopback address, or the folder of a Unix socket."""
    return host.startswith("/") or is_loopback(host)
