"""The head of the archive's manifest as the shared database records it, on an ordinary connection.

It does not use the lock's connection: the archiver is no replica. Its writes are idempotent, and only move forward.
"""

from __future__ import annotations

import msgspec

from replica.store.open import tools_of


class ArchiveHead(msgspec.Struct, frozen=True):
    """Number of lines of the manifest, SHA-256 of the last one in hexadecimal, and the last offset they cover."""

    lines: int
    hash: str
    last: int


class ArchiveHeads:
    """The heads in one database. Each call makes a new connection, because calls are rare."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def newest(self, archive_id: str) -> ArchiveHead | None:
        """The newest head that was recorded; None if none was. Raises StoreUnavailable and StoreMismatch."""
        rows = tools_of(self._conninfo).archive_heads("archive_head", {"archive_id": archive_id})
        return ArchiveHead(*rows[0]) if rows else None

    def record(self, archive_id: str, head: ArchiveHead) -> None:
        """Record a head, unless a newer one is there. Raises StoreUnavailable and StoreMismatch."""
        values = {"archive_id": archive_id, "lines": head.lines, "hash": head.hash, "last_offset": head.last}
        tools_of(self._conninfo).archive_heads("record_archive_head", values)
