"""Waits for what the follower applies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from ha.errors import ActivationFailed
from replica.active.parts import Parts
from replica.notary.position import Position


async def until_applied(parts: Parts, condition: Callable[[Position], bool], what: str) -> Position:
    """Wait for an applied position, for as long as the follower makes progress. Raises ActivationFailed."""
    follower = parts.follower
    while True:
        before = follower.applied_offset
        try:
            async with asyncio.timeout(parts.settings.log_stall_max_s):
                return await follower.wait_for(condition)
        except TimeoutError:
            if follower.applied_offset == before:
                raise ActivationFailed(f"{what} did not read back") from None


async def read_to_the_end(parts: Parts) -> Position:
    """Wait until every record that was in the log at the call is applied; returns the applied position.

    Raises ActivationFailed when the log stalls, and LogUnavailable.
    """
    await until_applied(parts, lambda _: True, "the log's first record")
    end = await parts.request_log.end_offset()
    return await until_applied(parts, partial(_has_read_below, end), f"the log's record {end - 1}")


def _has_read_below(end: int, position: Position) -> bool:
    return position.offset >= end - 1
