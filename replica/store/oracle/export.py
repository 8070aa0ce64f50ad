"""Reads all completions for an audit, on its own connection, page by page: no long snapshot, and it delays no other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import oracledb

from replica.notary.errors import StoreMismatch
from replica.notary.salvage import bound_topic_id, salvages_named
from replica.store.facts import PAGE_ROWS, Export, PublishedState
from replica.store.interface import Completion
from replica.store.oracle.looking import errors_named, plain_cursor
from replica.store.oracle.store import completion_of, named_statement


@contextmanager
def export_completions(login: Mapping[str, str]) -> Iterator[Export]:
    """All that is published, while the context lasts. Raises StoreUnavailable and StoreMismatch, the rows as well."""
    with plain_cursor("export", login) as cursor:
        cursor.execute(named_statement("export_status"))
        row = cursor.fetchone()
        if row is None:
            raise StoreMismatch("the database has no participant row")
        topic_id, published_offset, ledger_end, found = row
        pruned_to = int(found)
        rows = _rows(cursor, int(ledger_end), pruned_to)
        yield Export(
            bound_topic_id(topic_id),
            int(published_offset),
            int(ledger_end),
            rows,
            pruned_to,
            salvages_named(topic_id),
        )


def published_state(login: Mapping[str, str]) -> PublishedState:
    """See replica.store.postgres.export."""
    with export_completions(login) as export, plain_cursor("published", login) as cursor:
        cursor.execute(named_statement("published"), fetch_lobs=False)
        ((position, ledger_end, pruned_to),) = cursor.fetchall()
        return PublishedState(export.topic_id, position, int(ledger_end), int(pruned_to))


def export_range(login: Mapping[str, str], after: int, until: int) -> Iterator[tuple[int, Completion]]:
    """See replica.store.postgres.export."""
    with plain_cursor("export", login) as cursor:
        yield from _rows(cursor, until, after)


def _rows(cursor: oracledb.Cursor, ledger_end: int, after: int) -> Iterator[tuple[int, Completion]]:
    """Rows never change once they are published, so pages fit together."""
    cursor.prefetchrows = cursor.arraysize = PAGE_ROWS
    while True:
        bounds = {"after_offset": after, "until_offset": ledger_end, "row_count": PAGE_ROWS}
        with errors_named("export"):
            cursor.execute(named_statement("export_completions"), bounds, fetch_lobs=False)
            page = cursor.fetchall()
        for row in page:
            after = row[0]
            yield after, completion_of(row)
        if len(page) < PAGE_ROWS:
            return
