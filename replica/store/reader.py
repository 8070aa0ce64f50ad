"""Reads published completions over connections that cannot write, for the ledger API's streams and queries.

The caller gets the ledger end from the active. All completions above the bound of pruning and up to it are committed,
without a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from replica.notary.errors import StoreUnavailable
from replica.store.interface import Row

PAGE_DETAIL_BYTES = 4_000_000
WINDOW_DETAIL_BYTES = 200_000  # half a megabyte as JSON


class Scan(msgspec.Struct, frozen=True):
    """The result of a bounded search, and the last ledger offset that was searched."""

    rows: list[Row]
    scanned_to: int


class CompletionReader(Protocol):
    """One reader: its calls take turns. Raises StoreUnavailable when the database does not answer, or lacks the rows.

    The reader's own limits bound every call, whatever the caller asks for.
    """

    async def read(self, after: int, until: int, bytes_max: int = PAGE_DETAIL_BYTES) -> Sequence[Row]:
        """The completions after ledger offset `after`, at most up to `until`: dense, and at least one if there is one.

        Details before the last row's have less than `bytes_max` bytes; one has at most 0.8 MB.
        """

    async def first_at(self, log_offset: int, ledger_end: int) -> int:
        """The first kept ledger offset whose record is at `log_offset` or after it.

        `ledger_end` + 1 when there is none.
        """

    async def find_attempts(self, state: bytes, tx_id: bytes, after: int, until: int) -> Scan:
        """Completions of `tx_id`, and those refused because `state` was consumed, in a bounded range after `after`.

        The caller knows that completions exist after `after` up to `until`. Both the range that is searched and the
        result are bounded, in rows and bytes.
        """

    async def reset(self) -> None:
        """Close the connection, so that the next call finds the server that the participant's database is on now."""

    async def close(self) -> None:
        """End; may be repeated."""


def check_dense(rows: Sequence[Row], after: int, until: int) -> Sequence[Row]:
    """The rows, if they follow `after` without a gap. Raises StoreUnavailable: another server must be asked."""
    if until > after and not rows:
        raise StoreUnavailable(f"no completion after ledger offset {after}, although {until} is published")
    for expected, (offset, _) in enumerate(rows, after + 1):
        if offset != expected:
            raise StoreUnavailable(f"the completion at ledger offset {expected} is not there")
    return rows
