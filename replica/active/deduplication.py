"""How far back an acceptance of the same command counts, and which longer periods are refused. Pure."""

from __future__ import annotations

import msgspec

from replica.link.interface import SubmitOptions
from replica.notary.answers import DeduplicationBound


class Remembered(msgspec.Struct, frozen=True):
    """What deduplication knows: every command accepted above ledger offset `pruned_to`, and the longest period allowed.

    Those are all commands that were recorded later than `pruned_us` (microseconds UTC)."""

    max_s: float
    pruned_to: int = 0
    pruned_us: int = 0

    def bound(self, now_us: int) -> DeduplicationBound:
        """The longest period that a submission may ask for now."""
        kept_s = max(0.0, (now_us - self.pruned_us - 1) / 1e6)
        return DeduplicationBound(min(self.max_s, kept_s), self.pruned_to)


class Period(msgspec.Struct, frozen=True):
    """The store's search range: acceptances recorded at `since_us` or later, above the ledger offset `after`.

    `duration_us` is the same period as a length in microseconds; None for a period given by an offset.
    """

    since_us: int
    after: int
    duration_us: int | None = None


def period_of(options: SubmitOptions, remembered: Remembered, now_us: int) -> Period | DeduplicationBound:
    """The period that is honoured in full; or the bound, if the submission asks for more than is remembered.

    The default is the longest period that the settings allow, or all that is remembered, if that is less.
    """
    after, wanted_s = options.deduplication_after, options.deduplication_s
    if after is not None:
        return Period(0, after) if after >= remembered.pruned_to else remembered.bound(now_us)
    if wanted_s is None:
        since_us = max(now_us - round(remembered.max_s * 1e6), remembered.pruned_us + 1)
        return Period(since_us, remembered.pruned_to, max(0, now_us - since_us))
    if not 0 <= wanted_s <= remembered.max_s:
        return remembered.bound(now_us)
    duration_us = round(wanted_s * 1e6)
    if now_us - duration_us <= remembered.pruned_us:
        return remembered.bound(now_us)
    return Period(now_us - duration_us, 0, duration_us)
