"""The head of the archive's manifest as the shared database knows it, on an ordinary connection.

Not the lock's: the archiver is no replica, and what it writes is idempotent and only ever moves forward.
"""

from __future__ import annotations

from typing import Any

import msgspec
import psycopg

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.store.looking import in_unicode
from replica.store.migrate import CONNECT_MAX_S
from replica.store.oracle_login import is_oracle, parse_oracle
from replica.store.postgres import named_statement


class ArchiveHead(msgspec.Struct, frozen=True):
    """Number of lines of the manifest, SHA-256 of the last one in hexadecimal, and the last offset they cover."""

    lines: int
    hash: str
    last: int


class ArchiveHeads:
    """The heads in one database. Each call connects anew: there are few, and far apart."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def newest(self, archive_id: str) -> ArchiveHead | None:
        """The newest head that was recorded; None if none was. Raises StoreUnavailable and StoreMismatch."""
        rows = self._run("archive_head", {"archive_id": archive_id})
        return ArchiveHead(*rows[0]) if rows else None

    def record(self, archive_id: str, head: ArchiveHead) -> None:
        """Record a head, unless a newer one is there. Raises StoreUnavailable and StoreMismatch."""
        values = {"archive_id": archive_id, "lines": head.lines, "hash": head.hash, "last_offset": head.last}
        self._run("record_archive_head", values)

    def _run(self, name: str, values: dict[str, object]) -> list[tuple[Any, ...]]:
        if is_oracle(self._conninfo):
            from replica.store.oracle_tools import run_once

            return run_once(parse_oracle(self._conninfo), name, values)
        try:
            with psycopg.connect(
                in_unicode(self._conninfo), autocommit=True, connect_timeout=CONNECT_MAX_S
            ) as connection:
                found = connection.execute(named_statement(name), values)
                return found.fetchall() if found.description else []
        except (psycopg.errors.UndefinedTable, psycopg.errors.InsufficientPrivilege) as error:
            raise StoreMismatch(
                f"the archive's head: {str(error).strip()}; see `notary store migrate` and `notary store roles`"
            ) from None
        except psycopg.Error as error:
            raise StoreUnavailable(f"the archive's head could not be read or written: {error}") from None
