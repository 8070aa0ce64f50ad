"""The operations of tools on a request log. A replica reads and writes the log as a `RequestLog`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

Header = tuple[str, bytes | None]


class StoredRecord(msgspec.Struct, frozen=True):
    """A record exactly as the log has it."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive records, column by column, with everything that the log keeps of them, so that nothing is lost.

    A log without keys and headers has None for each.
    """

    first_offset: int
    times_ms: Sequence[int]  # when each was appended, milliseconds UTC, by the log's clock
    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[Sequence[Header] | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSurvey:
    """What a log reports of itself, for judging whether it may be relied on."""

    log_id: str
    first_offset: int
    end_offset: int
    violations: Sequence[str] = ()  # of the contract that keeps its records
    deletable: bool | None = False  # whether one command of an authorised user deletes it; None: not known
    appears: bool | None = False  # whether its servers create a log that a client only asks for; None: not known
    database: str | None = None  # the database server that it is on, as a barrier names it; None: on none
    oldest_snapshot: int | None = None  # open there, its age in transactions; None: in no database, or not known
    spare: int | None = None  # how many more of its servers may fail before nothing can be appended; None: not known
    silent: Sequence[str] = ()  # servers that do not answer, where the log knows


class LogAdmin(Protocol):
    """One connection of a tool. Every question raises LogUnavailable, and LogMissing when there is no such log."""

    async def topic_id(self) -> str:
        """The identity of the log."""

    async def first_offset(self) -> int:
        """The oldest offset that the log still has."""

    async def end_offset(self) -> int:
        """The offset that the next record will get."""

    async def server_count(self) -> int:
        """How many servers keep the log's copies."""

    async def survey(self) -> LogSurvey:
        """All facts that the log is judged by."""

    async def create(self) -> str:
        """Create the log unless it exists; returns its identity. Raises LogRefused when its contract is broken."""

    def stretch(self, first: int, end: int) -> Iterator[Stretch]:
        """The records [first, end): all of them, or an error. Blocks: for jobs, not for an event loop.

        Raises LogRefused on a gap, and LogUnavailable.
        """

    async def close(self) -> None:
        """Close the connection. May be repeated."""
