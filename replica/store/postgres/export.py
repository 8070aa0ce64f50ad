"""Reads all completions for an audit, on its own connection, page by page: no long snapshot, and it delays no other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.notary.salvage import bound_topic_id, salvages_named
from replica.store.facts import PAGE_ROWS, Export, PublishedState
from replica.store.interface import Completion
from replica.store.postgres.looking import to_use
from replica.store.postgres.store import completion_of, named_statement

_CONNECT_MAX_S = 5
_STATEMENT_MAX_S = 60


@contextmanager
def export_completions(conninfo: str) -> Iterator[Export]:
    """All that is published, while the context lasts. Raises StoreUnavailable and StoreMismatch, the rows as well."""
    with _connected(conninfo) as connection:
        row = connection.execute(named_statement("export_status")).fetchone()
        if row is None:
            raise StoreMismatch("the database has no participant row")
        topic_id, published_offset, ledger_end, pruned_to = row
        rows = _rows(connection, ledger_end, pruned_to)
        salvages = salvages_named(topic_id)
        yield Export(bound_topic_id(topic_id), published_offset, ledger_end, rows, pruned_to, salvages)


def published_state(conninfo: str) -> PublishedState:
    """The present state. Raises StoreUnavailable and StoreMismatch."""
    with export_completions(conninfo) as export, _connected(conninfo) as connection:
        row = connection.execute(named_statement("published")).fetchone()
        if row is None:
            raise StoreMismatch("the database has no participant row")
        position, ledger_end, pruned_to = row
        return PublishedState(export.topic_id, position, ledger_end, pruned_to)


def export_range(conninfo: str, after: int, until: int) -> Iterator[tuple[int, Completion]]:
    """Completions with ledger offsets after `after`, up to and including `until`, on a connection of their own.

    Raises StoreUnavailable and StoreMismatch.
    """
    with _connected(conninfo) as connection:
        yield from _rows(connection, until, after)


def _rows(connection: psycopg.Connection[Any], ledger_end: int, after: int) -> Iterator[tuple[int, Completion]]:
    """Rows never change once they are published, so pages fit together."""
    statement = named_statement("export_completions")
    while True:
        with _errors_named():
            page = connection.execute(statement, (after, ledger_end, PAGE_ROWS), binary=True).fetchall()
        for row in page:
            after = row[0]
            yield after, completion_of(row)
        if len(page) < PAGE_ROWS:
            return


@contextmanager
def _connected(conninfo: str) -> Iterator[psycopg.Connection[Any]]:
    with (
        _errors_named(),
        psycopg.connect(to_use(conninfo), autocommit=True, connect_timeout=_CONNECT_MAX_S) as connection,
    ):
        connection.execute(b"SELECT set_config('statement_timeout', %s, false)", (f"{_STATEMENT_MAX_S}s",))
        yield connection


@contextmanager
def _errors_named() -> Iterator[None]:
    try:
        yield
    except psycopg.errors.UndefinedTable:
        raise StoreMismatch("the database has no schema; run `notary store migrate`") from None
    except psycopg.Error as error:
        raise StoreUnavailable(f"the completions could not be read: {error}") from None
