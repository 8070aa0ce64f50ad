"""The committed-state index: what the log has decided, as keys and values. It is a cache that knows its position.

`replica.notary.rules` defines what keys and values mean. An index answers a look-up correctly or raises
IndexUnreadable: a read error is neither "spent" nor "unspent".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from replica.notary.parties import Officers
from replica.notary.position import Position

POSITION_KEY = b"m/position"
COMMANDS_POSITION_KEY = b"a/position"  # in the table of commands; each sorts before all entries of its table
OFFSET_END = 2**64 - 1  # above every log offset

NOTHING: Mapping[bytes, bytes] = MappingProxyType({})


class Commands(Protocol):
    """The acceptances of commands (replica.notary.acceptances), with a position of their own. Errors as Index."""

    def position(self) -> Position | None:
        """The position up to which every acceptance is here; None for a new table."""

    @property
    def entry_count(self) -> int:
        """How many acceptances there are."""

    def newest(self, change_ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """The newest acceptance of each command that was recorded below the log offset in the same place, or None."""

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """Add entries and move the position: both or neither. No key exists yet."""

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, in key order."""


class Parties(Protocol):
    """Officers and registrations (replica.notary.parties), with a position of their own. Errors as Index."""

    def position(self) -> Position | None:
        """The position up to which every registration is here; None for a new table."""

    @property
    def entry_count(self) -> int:
        """How many entries there are."""

    def officers(self) -> Officers:
        """The officers in force at the position."""

    def newest(self, ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        """The newest registration of each id (`registration_id`) below the log offset in the same place, or None."""

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """Add entries and move the position: both or neither. No key exists yet."""

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries, in key order."""


class Index(Protocol):
    """One replica's index. Every method raises IndexUnreadable when storage fails or is corrupt.

    Its position is that of states and transactions. `commands` and `parties` have their own: see
    replica/index/commands.py and replica/index/parties.py.
    """

    @property
    def commands(self) -> Commands:
        """The acceptances of commands."""

    @property
    def parties(self) -> Parties:
        """Officers and registrations. Written apart from the rest, before a run of records is judged."""

    def position(self) -> Position | None:
        """The position up to which the log is applied; None for a new index."""

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The value of each key, None where there is none."""

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        """Add entries and move the position: both or neither (one write batch).

        No key exists yet. The rules record each entry once, and it never changes. `accepted` are the acceptances of the
        same records. They go to `commands`, before the rest is written, as far as they follow on what is there.
        """

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        """All entries of states and transactions, in key order."""

    def checkpoint(self, folder: Path) -> None:
        """Write a consistent copy, position included, into a folder that does not exist yet."""

    def close(self) -> None:
        """Close. May be repeated."""
