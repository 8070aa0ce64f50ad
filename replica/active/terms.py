"""A submission's deduplication period as its record states it, under rules that judge commands in the log. Pure.

The index remembers every acceptance, so nothing is forgotten when completions are pruned. What a submission may ask for
is bounded by the settings only.
"""

from __future__ import annotations

import msgspec

from replica.link.interface import SubmitOptions
from replica.notary.answers import DeduplicationBound
from replica.notary.records import NO_OFFSET
from replica.notary.requests import TIME_MAX_US
from replica.notary.terms import period_us_of


class Terms(msgspec.Struct, frozen=True):
    """An acceptance counts if it was judged at most `deduplication_us` microseconds before the record, at a log offset
    above `after_offset`; see docs/formats.md."""

    deduplication_us: int
    after_offset: int = NO_OFFSET


def terms_of(options: SubmitOptions, max_s: float) -> Terms | DeduplicationBound:
    """The terms of a submission that names no ledger offset; or the bound, if it asks for a longer period."""
    wanted_s = max_s if options.deduplication_s is None else options.deduplication_s
    if not 0 <= wanted_s <= max_s:
        return DeduplicationBound(max_s, 0)
    return Terms(period_us_of(wanted_s))


def terms_after(log_offset: int) -> Terms:
    """The terms of a submission that names the ledger offset of a completion, from the record at that log offset."""
    return Terms(TIME_MAX_US, log_offset)
