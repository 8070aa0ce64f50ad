"""Opens a participant database for tools and readers: the place where a connection string tells which kind it is.

One that begins with `oracle://` is Oracle's, any other is libpq's: Postgres. Drivers are imported when they are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

from replica.notary.errors import ConfigError
from replica.notary.position import Position
from replica.notary.salvage import Salvage
from replica.store.facts import Export, PublishedState
from replica.store.interface import Completion
from replica.store.oracle.login import is_oracle, parse_oracle, render_oracle
from replica.store.reader import CompletionReader

_COMMANDS_MAX = 1_000_000  # settings bound what is in flight far below
_TX_ID_AT = 5


@dataclass(frozen=True, slots=True)
class Tools:
    """What tools ask of one database, each on a connection of its own. The functions below say what is answered."""

    export_completions: Callable[[], AbstractContextManager[Export]]
    export_range: Callable[[int, int], Iterator[tuple[int, Completion]]]
    published_state: Callable[[], PublishedState]
    adopt_topic: Callable[[int, str, Callable[[Position], None], Salvage | None], Position | None]
    pending: Callable[[int], list[tuple[Any, ...]]]
    archive_heads: Callable[[str, Mapping[str, Any]], list[tuple[Any, ...]]]


def tools_of(conninfo: str) -> Tools:
    """The tools of the database that a connection string, password included, leads to. Raises ConfigError."""
    if is_oracle(conninfo):
        from replica.store.oracle import tools

        login = parse_oracle(conninfo)
        return Tools(
            export_completions=partial(tools.export_completions, login),
            export_range=partial(tools.export_range, login),
            published_state=partial(tools.published_state, login),
            adopt_topic=partial(tools.adopt_topic, login),
            pending=lambda limit: tools.run_once(login, "pending", {"row_count": limit}),
            archive_heads=partial(tools.run_once, login),
        )
    from replica.store.postgres import adopt, archive_heads, export, lost

    return Tools(
        export_completions=partial(export.export_completions, conninfo),
        export_range=partial(export.export_range, conninfo),
        published_state=partial(export.published_state, conninfo),
        adopt_topic=partial(adopt.adopt_topic, conninfo),
        pending=partial(lost.pending, conninfo),
        archive_heads=partial(archive_heads.run_once, conninfo),
    )


def open_reader(address: str) -> CompletionReader:
    """The reader of the database that a connection string, password included, leads to. Connects when first used."""
    if is_oracle(address):
        from replica.store.oracle.reader import OracleReader

        return OracleReader(address)
    from replica.store.postgres.reader import PostgresReader

    return PostgresReader(address)


def export_completions(conninfo: str) -> AbstractContextManager[Export]:
    """All that is published, while the context lasts. Raises StoreUnavailable and StoreMismatch, the rows as well."""
    return tools_of(conninfo).export_completions()


def export_range(conninfo: str, after: int, until: int) -> Iterator[tuple[int, Completion]]:
    """Completions with ledger offsets after `after`, up to and with `until`, on a connection of their own.

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
    """Let the database belong to this topic; returns its published position there, None if nothing was published.

    `lock_id`: of the lock that makes a replica active; held meanwhile. `check` raises unless the topic has the records
    that the position was read from. `salvage`: of what the topic has lost; from then on the database names it, and no
    replica serves whose index lacks it. May be repeated. Raises StoreMismatch when a replica is active or the database
    changes meanwhile, RestoreRefused when it changed since the salvage was made, and StoreUnavailable.
    """
    return tools_of(conninfo).adopt_topic(lock_id, topic_id, check, salvage)


def commands_in_flight(conninfo: str) -> list[bytes]:
    """Transaction ids of the commands that were admitted and have no completion. Raises StoreUnavailable."""
    return [bytes(row[_TX_ID_AT]) for row in tools_of(conninfo).pending(_COMMANDS_MAX)]


def parse_conninfo(conninfo: str) -> dict[str, str]:
    """What a connection string says, by name. Raises ConfigError when it cannot be understood."""
    if is_oracle(conninfo):
        return parse_oracle(conninfo)
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        return {name: str(value) for name, value in conninfo_to_dict(conninfo).items() if value is not None}
    except ProgrammingError as error:
        raise ConfigError(f"no libpq connection string: {str(error).strip()}") from None


def with_password(conninfo: str, password: str) -> str:
    """The connection string with a password put in. Raises ConfigError."""
    if is_oracle(conninfo):
        return render_oracle({**parse_oracle(conninfo), "password": password})
    from psycopg.conninfo import make_conninfo

    return make_conninfo(conninfo, password=password)
