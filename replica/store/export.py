"""Reads all completions for an audit, on a connection of its own, page by page: no long snapshot, nobody is held up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
import psycopg

from replica.notary.errors import StoreMismatch, StoreUnavailable
from replica.notary.salvage import bound_topic_id, salvages_named
from replica.store.interface import Completion
from replica.store.looking import in_unicode
from replica.store.oracle_login import is_oracle, parse_oracle
from replica.store.postgres import completion_of, named_statement

PAGE_ROWS = 5_000
_CONNECT_MAX_S = 5
_STATEMENT_MAX_S = 60


class Export(msgspec.Struct, frozen=True):
    """The completions that were published when the export began, by ledger offset; `rows` can be read once.

    They cover the log up to `published_offset` (-1: nothing yet) of topic `topic_id`; those up to ledger offset
    `pruned_to` are left out, whether they are gone or not. `age_us` is how long ago the
    first epoch was granted, in microseconds; None if none was. `salvages`: digests, in
    hexadecimal, of those that the database demands.
    """

    topic_id: str | None
    published_offset: int
    ledger_end: int
    age_us: int | None
    rows: Iterator[tuple[int, Completion]]
    pruned_to: int = 0
    salvages: tuple[str, ...] = ()


@contextmanager
def export_completions(conninfo: str) -> Iterator[Export]:
    """All that is published, while the context lasts. Raises StoreUnavailable and StoreMismatch, the rows as well."""
    if is_oracle(conninfo):
        from replica.store import oracle_tools

        with oracle_tools.export_completions(parse_oracle(conninfo)) as export:
            yield export
        return
    with _connected(conninfo) as connection:
        row = connection.execute(named_statement("export_status")).fetchone()
        if row is None:
            raise StoreMismatch("the database has no participant row")
        topic_id, published_offset, ledger_end, pruned_to, age_us = row
        rows = _rows(connection, ledger_end, pruned_to)
        salvages = salvages_named(topic_id)
        yield Export(bound_topic_id(topic_id), published_offset, ledger_end, age_us, rows, pruned_to, salvages)


class PublishedState(msgspec.Struct, frozen=True):
    """How far the database is: the published position's bytes (None: nothing published) and the ledger's end.

    Completions up to and with ledger offset `pruned_to` may be gone.
    """

    topic_id: str | None
    position: bytes | None
    ledger_end: int
    pruned_to: int


def published_state(conninfo: str) -> PublishedState:
    """The present state. Raises StoreUnavailable and StoreMismatch."""
    if is_oracle(conninfo):
        from replica.store import oracle_tools

        return oracle_tools.published_state(parse_oracle(conninfo))
    with export_completions(conninfo) as export, _connected(conninfo) as connection:
        row = connection.execute(named_statement("published")).fetchone()
        if row is None:
            raise StoreMismatch("the database has no participant row")
        position, ledger_end, pruned_to, _ = row
        return PublishedState(export.topic_id, position, ledger_end, pruned_to)


def export_range(conninfo: str, after: int, until: int) -> Iterator[tuple[int, Completion]]:
    """Completions with ledger offsets behind `after`, up to and with `until`, on a connection of their own.

    Raises StoreUnavailable and StoreMismatch.
    """
    if is_oracle(conninfo):
        from replica.store import oracle_tools

        yield from oracle_tools.export_range(parse_oracle(conninfo), after, until)
        return
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
        psycopg.connect(in_unicode(conninfo), autocommit=True, connect_timeout=_CONNECT_MAX_S) as connection,
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
