"""A submission's deduplication period as its record states it, under rules that judge commands in the log. Pure.

The index remembers every acceptance, so nothing is forgotten when completions are pruned. What a submission may ask for
is bounded by the settings only.
"""

from __future__ import annotations

import msgspec

from replica.link.interface import SubmitOptions
from replica.notary.answers import DeduplicationBound
from replica.notary.terms import FOR_EVER_US, period_us_of


class Terms(msgspec.Struct, frozen=True):
    """An acceptance counts if it was judged at most `deduplication_us` microseconds before the record; or, where the
    submission names a ledger offset, if its own is above that one. See docs/formats.md."""

    deduplication_us: int
    after: int | None = None


def terms_of(options: SubmitOptions, max_s: float) -> Terms | DeduplicationBound:
    """The terms of a submission; or the bound, if it asks for a longer period."""
    if options.deduplication_after is not None:
        return Terms(FOR_EVER_US, options.deduplication_after)
    wanted_s = max_s if options.deduplication_s is None else options.deduplication_s
    if not 0 <= wanted_s <= max_s:
        return DeduplicationBound(max_s, 0)
    return Terms(period_us_of(wanted_s))
