"""Fills the filter of an index in the background, in slices, with half of a processor."""

from __future__ import annotations

import structlog

from ha.clock import Clock
from replica.index.filtered import FilteredIndex

log = structlog.get_logger()

REST_MIN_S = 0.001


async def fill_filter(index: FilteredIndex, clock: Clock) -> None:
    """Go on until the filter answers, or cannot be trusted. Raises IndexUnreadable."""
    began_s = woke_s = clock.boottime_s()
    for _ in index.fill_filter():
        await clock.sleep_s(max(REST_MIN_S, clock.boottime_s() - woke_s))
        woke_s = clock.boottime_s()
    if index.filter_answers:
        log.info("index_filter_answers", entries=index.entry_count, took_s=round(clock.boottime_s() - began_s, 1))
