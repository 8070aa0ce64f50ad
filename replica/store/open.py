"""Opens a participant database for tools and readers. The kind of database follows from the connection string, and only
here is it determined.

`oracle://` means Oracle, `sqlite:` the embedded ledger of a replica; any other string is libpq's: Postgres. Drivers are
imported when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from replica.notary.position import Position
from replica.notary.salvage import Salvage
from replica.store.facts import Export, PublishedState
from replica.store.interface import Completion
from replica.store.oracle.login import ORACLE
from replica.store.reader import CompletionReader
from replica.store.sqlite.kind import SQLITE
from replica.store.tools import DatabaseKind, Tools


def kind_of(conninfo: str) -> DatabaseKind:
    """The kind of the database that a connection string leads to. No other code determines it."""
    if conninfo.startswith(ORACLE):
        from replica.store.oracle import kind as oracle

        return oracle
    if conninfo.startswith(SQLITE):
        from replica.store.sqlite import kind as sqlite

        return sqlite
    from replica.store.postgres import kind as postgres

    return postgres


def tools_of(conninfo: str) -> Tools:
    """The tools of the database that a connection string, password included, leads to. Raises ConfigError."""
    return kind_of(conninfo).tools(conninfo)


def open_reader(address: str) -> CompletionReader:
    """The reader of the database that a connection string, password included, leads to. Connects when first used."""
    return kind_of(address).reader(address)


def export_completions(conninfo: str) -> AbstractContextManager[Export]:
    """All that is published, while the context lasts. Raises StoreUnavailable and StoreMismatch, the rows as well."""
    return tools_of(conninfo).export_completions()


def export_range(conninfo: str, after: int, until: int) -> Iterator[tuple[int, Completion]]:
    """Completions with ledger offsets after `after`, up to and including `until`, on a connection of their own.

    Raises StoreUnavailable and StoreMismatch.
    """
    return tools_of(conninfo).export_range(after, until)


def published_state(conninfo: str) -> PublishedState:
    """The present state. Raises StoreUnavailable and StoreMismatch."""
    return tools_of(conninfo).published_state()


def adopt_topic(
    conninfo: str,
    lock_id: int,
    topic_id: str,
    check: Callable[[Position], None],
    salvage: Salvage | None = None,
) -> Position | None:
    """Bind the database to this topic; return its published position there, None if nothing was published.

    `lock_id`: that of the lock that makes a replica active; held meanwhile. `check` raises unless the topic has the
    records that the position was read from. `salvage`: that of the records that the topic has lost. From then on the
    database names it, and a replica whose index lacks it does not serve. May be repeated.

    Raises StoreMismatch when a replica is active or the database changes meanwhile, RestoreRefused when it changed
    since the salvage was made, and StoreUnavailable.
    """
    return tools_of(conninfo).adopt_topic(lock_id, topic_id, check, salvage)


def parse_conninfo(conninfo: str) -> dict[str, str]:
    """What a connection string says, by name. Raises ConfigError when it cannot be understood."""
    return kind_of(conninfo).parse(conninfo)


def with_password(conninfo: str, password: str) -> str:
    """The connection string with a password put in. Raises ConfigError."""
    return kind_of(conninfo).with_password(conninfo, password)
