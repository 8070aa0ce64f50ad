"""Derives completions from the log. Pure."""

from __future__ import annotations

from replica.following.apply import Applied
from replica.notary.counted import CountedRequest
from replica.notary.records import NO_OFFSET, RequestRecord
from replica.notary.requests import TIME_MAX_US
from replica.store.completions import of_request
from replica.store.interface import Completion


def completions_of(applied: Applied) -> list[Completion]:
    """The completions of a run of records, in log order: the same at every replica, a function of the log alone."""
    return [
        of_request(entry, verdict, *_deduplication(entry.record))
        for entry, verdict in applied.decided()
        if isinstance(entry, CountedRequest) and verdict is not None
    ]


def _deduplication(record: RequestRecord) -> tuple[int | None, int | None]:
    """The deduplication period in microseconds, or the ledger offset after which acceptances count.

    The record has it, but for a ledger offset: the record has the log offset instead, and only "after the
    ledger's start" follows from it.
    """
    if record.deduplication_us < TIME_MAX_US:
        return record.deduplication_us, None
    return None, 0 if record.after_offset == NO_OFFSET else None
