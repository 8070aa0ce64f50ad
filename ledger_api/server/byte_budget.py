"""A budget for the bytes held in memory for clients: one bound for all, of which each caller has its share.

The next caller finds room (replica/notary/shares.py), and a slow reader does not shut the others out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Self

from replica.link.change_signal import ChangeSignal
from replica.notary.shares import Shares

ANSWER_BYTES = 4_096  # of an answer that is no conflict: a receipt's path, or a problem with its texts
ANSWER_FACTOR = 4  # a conflict has 194 bytes for a state, which takes 69 of a JSON body, or 36 of canonical bytes


class Reservation:
    """Bytes of a budget that one caller holds. Release them in every case; a release may be repeated."""

    __slots__ = ("_budget", "_holder", "held_bytes")

    def __init__(self, budget: ByteBudget, holder: Hashable, held_bytes: int) -> None:
        self._holder = holder
        self._budget = budget
        self.held_bytes = held_bytes

    def shrink(self, needed_bytes: int) -> None:
        """Keep no more than this."""
        if needed_bytes < self.held_bytes:
            self._budget.free(self._holder, self.held_bytes - needed_bytes)
            self.held_bytes = needed_bytes

    def release(self) -> None:
        """Keep nothing."""
        self.shrink(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """An error releases the bytes; otherwise they stay with the answer that holds them."""
        if kind is not None:
            self.release()


class ByteBudget:
    """At most `max_bytes`. A holder that is alone may have more: a larger call could never be served otherwise."""

    def __init__(self, max_bytes: int) -> None:
        self._shares = Shares(max_bytes)
        self._freed = ChangeSignal()
        self._waiting = 0

    @property
    def held_bytes(self) -> int:
        """What all hold together."""
        return self._shares.held

    def take(self, wanted_bytes: int, holder: Hashable = None) -> Reservation | None:
        """Reserve bytes. Returns None while too few are free, or if `holder` would leave fewer free than it holds.

        Without a holder only the bound counts: for a budget that belongs to one caller.
        """
        return Reservation(self, holder, wanted_bytes) if self._shares.take(holder, wanted_bytes) else None

    async def wait(self, wanted_bytes: int, holder: Hashable, max_s: float) -> Reservation | None:
        """As `take`, after waiting for at most `max_s` seconds."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + max_s
        self._waiting += 1
        try:
            while (taken := self.take(wanted_bytes, holder)) is None and (left_s := until_s - loop.time()) > 0:
                await self._freed.wait(left_s)
        finally:
            self._waiting -= 1
        return taken

    def free(self, holder: Hashable, freed_bytes: int) -> None:
        """Called by Reservation alone."""
        self._shares.free(holder, freed_bytes)
        if self._waiting:
            self._freed.notify()


def signed_answers_max_bytes(request_bytes: int, count: int) -> int:
    """As `answers_max_bytes`, for submissions in canonical bytes, whose answers are MessagePack."""
    return ANSWER_FACTOR * request_bytes + ANSWER_BYTES * count


def answers_max_bytes(asked_bytes: int, count: int) -> int:
    """The most bytes that the answers to `count` submissions, together `asked_bytes` of JSON, can have."""
    return ANSWER_FACTOR * asked_bytes + ANSWER_BYTES * count
