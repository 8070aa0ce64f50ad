"""What tools read from a participant database of either kind."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import msgspec

from replica.store.interface import Completion

PAGE_ROWS = 5_000  # of an export


class StoreStatus(msgspec.Struct, frozen=True):
    """The shared state of a participant: the newest epoch and to whom it was granted, and the positions."""

    ledger_id: str
    topic_id: str | None
    epoch: int
    replica: str | None
    granted_at: datetime | None
    published_offset: int
    ledger_end: int
    schema_version: int
    salvages: tuple[str, ...] = ()  # digests, in hexadecimal, of those that the database requires


class Export(msgspec.Struct, frozen=True):
    """The completions that were published when the export began, by ledger offset; `rows` can be read once.

    They cover the log up to `published_offset` (-1: nothing yet) of topic `topic_id`. Those up to ledger offset
    `pruned_to` are left out, whether they are gone or not. `salvages`: digests, in hexadecimal, of those
    that the database requires.
    """

    topic_id: str | None
    published_offset: int
    ledger_end: int
    rows: Iterator[tuple[int, Completion]]
    pruned_to: int = 0
    salvages: tuple[str, ...] = ()


class PublishedState(msgspec.Struct, frozen=True):
    """The progress of the database: the published position's bytes (None: nothing published) and the ledger's end.

    Completions up to and including ledger offset `pruned_to` may be gone.
    """

    topic_id: str | None
    position: bytes | None
    ledger_end: int
    pruned_to: int
