"""Applications that follow completions and updates across fail-overs, through the product's own feed.

A follower keeps only the last offset that it has processed. When a stream ends, breaks or falls silent, it opens
another one after that offset, at the replica that the balancer names.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from random import Random
from typing import TYPE_CHECKING

from ledger_api.server.authorisation import Caller
from ledger_api.server.feed import Feed, FeedRefused
from ledger_api.server.feed_lines import Entry, Line, Wanted
from replica.link.memory import MemoryLink
from replica.notary.codes import Code
from replica.notary.errors import StoreUnavailable
from replica.store.memory import MemoryDatabase, MemoryReader

if TYPE_CHECKING:
    from tests.simulation.world import World

CHECKPOINT_S = 1.0
_SILENCE_MAX_S = 3.0  # a follower gives up a stream that sends nothing for this long
_LINES_MAX = 40  # a stream may break after this many lines
_PAGE_ROWS = 7


def make_feed(link: MemoryLink, name: str, world: World) -> Feed:
    """The feed of a front end of this replica."""
    random = Random(f"{world.plan.seed}/feed/{name}/{world.loop.time()}")

    async def travel() -> None:
        await asyncio.sleep(random.uniform(0.0004, 0.006))
        if world.skies.of(name).database_cut:
            await asyncio.sleep(random.uniform(0.1, 1.0))
            raise StoreUnavailable("out of reach")

    def connect() -> MemoryDatabase:
        return world.replica(name).ledger.tables if world.plan.lease else world.route(name).tables

    reader = MemoryReader(connect, travel, _PAGE_ROWS)
    return Feed(link, reader, CHECKPOINT_S, world.loop.time)


class Follower:
    """One application, with the lines that it got."""

    def __init__(self, number: int, world: World, *, updates: bool) -> None:
        self.name = f"f{number}"
        self.sticks_to = ""
        self.lines: list[Line] = []
        self.offset = 0
        self.streams = 0
        self.missed: set[int] = set()  # offsets that were pruned before the follower reached them
        self._world = world
        self._random = Random(f"{world.plan.seed}/{self.name}")
        self._wanted = Wanted(updates=updates, caller=Caller())

    async def run(self) -> None:
        """Follow for ever."""
        while True:
            await asyncio.sleep(self._random.uniform(0.02, 0.1))
            up = self._world.balancer.up
            core = self._world.replica(self._random.choice(up)).core if up else None
            if core is not None:
                self.streams += 1
                await self._follow(core.feed)

    async def _follow(self, feed: Feed) -> None:
        left = self._random.randint(1, _LINES_MAX)
        try:
            async with aclosing(feed.follow(self._wanted, self.offset)) as batches:
                while left > 0:  # then the connection breaks, perhaps in the middle of what was sent
                    async with asyncio.timeout(_SILENCE_MAX_S):  # the process that serves it may be frozen
                        lines = await anext(batches)
                    await asyncio.sleep(self._random.uniform(0.0002, 0.003))
                    for line in lines[:left]:
                        self._take(line)
                    left -= len(lines)
        except FeedRefused as refused:
            if refused.code is Code.OFFSET_PRUNED:
                self._skip(refused.standing.pruned_to)
        except TimeoutError:
            return

    def _skip(self, pruned_to: int) -> None:
        """Completions that it has not seen are pruned: continue after them, and note the gap."""
        if pruned_to > max(self._world.primary.tables.bounds_ever):
            self._world.blame(f"{self.name} was told that completions up to {pruned_to} are pruned")
        self.missed.update(range(self.offset + 1, pruned_to + 1))
        self.offset = max(self.offset, pruned_to)

    def _take(self, line: Line) -> None:
        if line.kind != "checkpoint":
            self.lines.append(line)
        self.offset = line.offset

    def judge(self) -> None:
        """Blame lines that came twice, out of order, or not at all, or that differ from what is published."""
        world = self._world
        entries = [Entry(*row) for row in world.primary.tables.completions if row[0] not in self.missed]
        due = [line for entry in entries if (line := entry.line(self._wanted))]
        for told, demanded in zip(self.lines, due, strict=False):
            if told != demanded:
                world.blame(f"{self.name} was told {told}, which should have been {demanded}")
                return
        if len(self.lines) != len(due) and not world.power.may_stop:
            world.blame(f"{self.name} was told {len(self.lines)} lines of {len(due)}, to offset {self.offset}")
