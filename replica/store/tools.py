"""The operations of tools on a participant database, and the properties of each kind of database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from replica.notary.position import Position
from replica.notary.salvage import Salvage
from replica.store.facts import Export, PublishedState
from replica.store.interface import Completion
from replica.store.reader import CompletionReader


@dataclass(frozen=True, slots=True)
class Tools:
    """The operations of tools on one database, each on its own connection; replica/store/open.py describes them."""

    export_completions: Callable[[], AbstractContextManager[Export]]
    export_range: Callable[[int, int], Iterator[tuple[int, Completion]]]
    published_state: Callable[[], PublishedState]
    adopt_topic: Callable[[int, str, Callable[[Position], None], Salvage | None], Position | None]
    archive_heads: Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]


class DatabaseKind(Protocol):
    """A kind of database: the module `kind` of its room."""

    NAME: str
    PROTECTED_BY: str
    """What a connection beyond this machine needs, in words for people."""

    def tools(self, conninfo: str) -> Tools:
        """The tools of that database. Raises ConfigError."""

    def reader(self, address: str) -> CompletionReader:
        """The reader of that database. Connects when first used."""

    def parse(self, conninfo: str) -> dict[str, str]:
        """The parts of a connection string, by name. Raises ConfigError when it cannot be understood."""

    def with_password(self, conninfo: str, password: str) -> str:
        """The connection string with a password put in. Raises ConfigError."""

    def hosts_in_clear(self, conninfo: str) -> list[str]:
        """The hosts that the connection string leads to over an unprotected connection."""
