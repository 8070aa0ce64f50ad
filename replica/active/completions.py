"""Derives completions from the log. Pure."""

from __future__ import annotations

from replica.following.apply import Applied
from replica.notary.counted import CountedRequest
from replica.store.completions import of_request
from replica.store.interface import Row


def completions_of(applied: Applied) -> list[Row]:
    """The completions of a run of records, in log order: the same at every replica, a function of the log alone."""
    return [
        (entry.ledger_offset, of_request(entry, verdict, *_deduplication(entry)))
        for entry, verdict in applied.decided()
        if isinstance(entry, CountedRequest) and verdict is not None
    ]


def _deduplication(entry: CountedRequest) -> tuple[int | None, int | None]:
    """The deduplication period in microseconds, or the ledger offset after which acceptances count."""
    after = entry.terms.ledger_offset
    return (entry.record.deduplication_us, None) if after is None else (None, after)
