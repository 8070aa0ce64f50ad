"""Room for bytes that are held in memory for clients: all together are bounded, whoever holds them.

Whoever holds some already leaves as much free as he has. One takes no more than half of it, two no more than a third
each: so much is left that the next one finds room, and nobody's wish to read slowly is everybody's trouble.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable

from replica.link.bell import Bell

ANSWER_BYTES = 4_096  # of an answer that is no conflict: a receipt's path, or a problem with its texts
ANSWER_FACTOR = 4  # a conflict has 194 bytes for a state, which takes 69 of a JSON body, or 36 of canonical bytes


class Held:
    """A part of a room that somebody has. Give it back, whatever happens; that may be repeated."""

    __slots__ = ("_holder", "_room", "held_bytes")

    def __init__(self, room: Room, holder: Hashable, held_bytes: int) -> None:
        self._holder = holder
        self._room = room
        self.held_bytes = held_bytes

    def shrink(self, needed_bytes: int) -> None:
        """Keep no more than this."""
        if needed_bytes < self.held_bytes:
            self._room.free(self._holder, self.held_bytes - needed_bytes)
            self.held_bytes = needed_bytes

    def give_back(self) -> None:
        """Keep nothing."""
        self.shrink(0)


class Room:
    """At most `max_bytes`; except that one holder alone may have more, or what is larger could never be done."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._freed = Bell()
        self._waiting = 0
        self._held_by: Counter[Hashable] = Counter()  # of whom there is something
        self.held_bytes = 0

    def take(self, wanted_bytes: int, holder: Hashable = None) -> Held | None:
        """So many bytes; None while there is no room for them, or `holder` would leave less than he has.

        Without a holder only the bound counts: in a room that one caller has for himself.
        """
        left_bytes = self._max_bytes - self.held_bytes - wanted_bytes
        his_bytes = 0 if holder is None else self._held_by[holder]
        if (self.held_bytes and left_bytes < 0) or (his_bytes and left_bytes < his_bytes + wanted_bytes):
            return None
        self.held_bytes += wanted_bytes
        self._held_by[holder] += wanted_bytes
        return Held(self, holder, wanted_bytes)

    async def wait(self, wanted_bytes: int, holder: Hashable, max_s: float) -> Held | None:
        """As `take`, after waiting for room for at most `max_s` seconds."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + max_s
        self._waiting += 1
        try:
            while (held := self.take(wanted_bytes, holder)) is None and (left_s := until_s - loop.time()) > 0:
                await self._freed.wait(left_s)
        finally:
            self._waiting -= 1
        return held

    def free(self, holder: Hashable, freed_bytes: int) -> None:
        """For Held."""
        self.held_bytes -= freed_bytes
        self._held_by[holder] -= freed_bytes
        if not self._held_by[holder]:
            del self._held_by[holder]  # or callers who are gone would add up
        if self._waiting:
            self._freed.ring()


def signed_answers_max_bytes(request_bytes: int, count: int) -> int:
    """The same for submissions in canonical bytes, whose answers are MessagePack."""
    return ANSWER_FACTOR * request_bytes + ANSWER_BYTES * count


def answers_max_bytes(asked_bytes: int, count: int) -> int:
    """What the answers to so many submissions, so many bytes of JSON together, have at most."""
    return ANSWER_FACTOR * asked_bytes + ANSWER_BYTES * count
