"""The head of the archive's manifest, as it is recorded where the replicas are: what shows that no line is missing.

In the shared database, over ordinary connections: the archiver is no replica and does not use the lock's. Without one,
in an operators' word in the log. Writes are idempotent, and only move forward.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Protocol

import msgspec

from replica.notary.errors import StoreMismatch
from replica.notary.words import NAME_PATTERN, WordsLog, replace, value_of
from replica.store.open import tools_of
from replica.store.words import read, written

ARCHIVE = "archive/"  # with the archive's id, the name of its word


class ArchiveHead(msgspec.Struct, frozen=True):
    """Number of lines of the manifest, SHA-256 of the last one in hexadecimal, and the last offset they cover."""

    lines: Annotated[int, msgspec.Meta(ge=0)]
    hash: str
    last: int


class Heads(Protocol):
    """The heads of archives. Called without an event loop."""

    def newest(self, archive_id: str) -> ArchiveHead | None:
        """The newest head that was recorded; None if none was. Raises StoreMismatch, StoreUnavailable or
        LogUnavailable."""

    def record(self, archive_id: str, head: ArchiveHead) -> None:
        """Record a head, unless a newer one is there. Raises likewise."""


class ArchiveHeads:
    """The heads in one database. Each call makes a new connection, because calls are rare."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def newest(self, archive_id: str) -> ArchiveHead | None:
        """See Heads. Raises StoreUnavailable and StoreMismatch."""
        rows = tools_of(self._conninfo).archive_heads("archive_head", {"archive_id": archive_id})
        return ArchiveHead(*rows[0]) if rows else None

    def record(self, archive_id: str, head: ArchiveHead) -> None:
        """See Heads. Raises StoreUnavailable and StoreMismatch."""
        values = {"archive_id": archive_id, "lines": head.lines, "hash": head.hash, "last_offset": head.last}
        tools_of(self._conninfo).archive_heads("record_archive_head", values)


class SaidHeads:
    """The heads in operators' words, one for each archive. A word counts only in place of the one that it was made
    from, so a head that comes late replaces no newer one."""

    def __init__(self, words: Callable[[], AbstractAsyncContextManager[WordsLog]]) -> None:
        """`words` opens the log that has them."""
        self._words = words

    def newest(self, archive_id: str) -> ArchiveHead | None:
        """See Heads. Raises LogUnavailable, StoreMismatch, and ConfigError where the log has no words."""

        async def ask() -> ArchiveHead | None:
            async with self._words() as words:
                return read(await value_of(words, word_of(archive_id)), ArchiveHead)

        return asyncio.run(ask())

    def record(self, archive_id: str, head: ArchiveHead) -> None:
        """See Heads. Raises as `newest` does."""

        async def say() -> None:
            async with self._words() as words:
                await replace(words, word_of(archive_id), lambda value: moved(value, head))

        asyncio.run(say())


def word_of(archive_id: str) -> str:
    """The word with the head of an archive. Raises StoreMismatch for an id that no archive of ours has."""
    name = f"{ARCHIVE}{archive_id}"
    if re.fullmatch(NAME_PATTERN, name) is None:
        raise StoreMismatch(f"no word of the log can be named after the archive {archive_id!r}")
    return name


def moved(value: bytes, head: ArchiveHead) -> bytes:
    """The head that follows one in force: it never goes back. Raises StoreMismatch for one that cannot be read."""
    before = read(value, ArchiveHead)
    return value if before is not None and before.lines >= head.lines else written(head)
