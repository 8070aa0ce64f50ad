"""The request log: the topic, and how records travel there and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from typing import Any

from replica.log.interface import LogRecords
from replica.log.memory import Delivery, MemoryLog, MemoryReader, MemoryTopic
from replica.notary.errors import LogUnavailable, NotaryError
from tests.simulation.process import Process
from tests.simulation.story import Story
from tests.simulation.weather import Skies

LOST_S = 0.5  # until a question without an answer is given up
LATE_S = 1.0


class Topic(MemoryTopic):
    """The topic; it notes in the story what is stored."""

    def __init__(self, story: Story, topic_id: str = "memory-1", values: Sequence[bytes] = ()) -> None:
        super().__init__(topic_id, values)
        self._story = story
        self._waiting: list[asyncio.Future[None]] = []
        self.newest_at_s: float | None = None  # when the newest record came
        self.generation = 0  # of its brokers: how often they lost power
        self._stored_at_s = [0.0] * len(values)

    def store(self, value: bytes) -> None:
        self.newest_at_s = asyncio.get_running_loop().time()
        self._stored_at_s.append(self.newest_at_s)
        self._story.tell("topic", "store", offset=self.end_offset, size=len(value), bytes=value[-24:])
        super().store(value)

    def lose(self, end: int) -> None:
        """The brokers lose power, and the records from `end` on."""
        self.generation += 1
        del self._stored_at_s[end:]
        self.truncate(end)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _finish(future)

    async def wait_for_change(self, wait_s: float) -> None:
        """Return when something happened, or after `wait_s`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        timer = loop.call_later(wait_s, _finish, future)
        try:
            await future
        finally:
            timer.cancel()

    async def end(self) -> None:
        """The run is over."""

    @property
    def stored_at_s(self) -> list[float]:
        """When each record came."""
        return self._stored_at_s

    @property
    def values(self) -> list[bytes]:
        """All records."""
        return self._records


class Wire(Delivery):
    """How one writer's records travel: out of its process' queue, over a network that loses, repeats, delays them."""

    def __init__(self, name: str, process: Process, skies: Skies, story: Story, linger_s: float) -> None:
        self._name = name
        self._process = process
        self._skies = skies
        self._story = story
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._purged = False
        self._lands_at_s = 0.0
        self._view = View(skies)

    def send(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        if self._fate(0.05, ("queue_full",), lambda _, ways: ways[0]):
            raise LogUnavailable("the queue is full")
        tries_until_s = self._loop.time() + 5.0
        wait_s = self._skies.random.uniform(0.0, self._linger_s)
        self._loop.call_later(wait_s, self._transmit, value, topic, give_up, tries_until_s)

    def purge(self) -> None:
        self._purged = True

    def _transmit(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None], tries_until_s: float) -> None:
        if self._purged or not self._process.alive:
            return
        again = partial(self._transmit, value, topic, give_up, tries_until_s)
        if self._process.stopped:
            self._process.deliver(again)
        elif self._skies.of(self._name).log_cut or self._view.takes_nothing():
            if self._loop.time() > tries_until_s:
                give_up()
            else:
                self._loop.call_later(0.05, again)
        else:
            self._travel(value, topic, give_up)

    def _travel(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        random, now_s = self._skies.random, self._loop.time()
        land = partial(self._land, topic, give_up, _generation(topic))
        lands_at_s = self._lands_at_s = max(self._lands_at_s, now_s + random.uniform(0.0005, 0.004))
        clogged_until_s = self._skies.of(self._name).log_clogged_until_s
        if clogged_until_s > now_s:
            self._skies.struck("append_held", self._name)
            lands_at_s = self._lands_at_s = max(lands_at_s, clogged_until_s + random.uniform(0.0, 0.01))
        if what := self._fate(1.0, ("append_late", "append_repeated", "append_reordered", "append_lost")):
            self._story.tell(self._name, what, bytes=value[-24:])
            later_s = now_s + random.choice((0.02, 0.2, 1.0, 5.0)) * random.random()
            if what == "append_lost":
                self._loop.call_later(0.5, give_up)
                return
            if what == "append_repeated":
                self._loop.call_at(later_s, land, value)
                self._skies.note_landing(later_s)
            else:
                lands_at_s = later_s if what == "append_late" else now_s + 0.03 * random.random()
        self._loop.call_at(lands_at_s, land, value)
        self._skies.note_landing(lands_at_s)

    def _land(self, topic: MemoryTopic, give_up: Callable[[], None], generation: int, value: bytes) -> None:
        """The record arrives; what was on its way when the brokers lost power is sent again, if its sender lives."""
        if _generation(topic) == generation:
            topic.store(value)
        else:
            self._transmit(value, topic, give_up, self._loop.time() + 5.0)

    def _fate(self, factor: float, ways: Sequence[str], draw: Callable[..., str] = Random.choice) -> str:
        return self._skies.fate(self._name, ways, factor * self._skies.of(self._name).log_share, draw)


class View:
    """Which broker a connection takes for the leader, while the old leader is cut off from its peers.

    A connection from before the cut stays with the old leader until the cut is healed. A new connection gets either
    leader with equal chance.
    """

    def __init__(self, skies: Skies) -> None:
        self._skies = skies
        self._opened_s = asyncio.get_running_loop().time()
        self._is_old = skies.leader_cut is not None and skies.views.random() < 0.5

    def old_end(self) -> int | None:
        """Where the log ends on the broker that it uses; None: the real end."""
        cut = self._skies.leader_cut
        return cut.end if cut is not None and (self._is_old or self._opened_s < cut.since_s) else None

    def takes_nothing(self) -> bool:
        """Whether no broker acknowledges an append."""
        cut = self._skies.leader_cut
        return cut is not None and (self.old_end() is not None or asyncio.get_running_loop().time() < cut.elected_s)


class SimulatedLog(MemoryLog):
    """One process' access to the topic."""

    def __init__(self, topic: Topic, name: str, process: Process, skies: Skies, story: Story, linger_s: float) -> None:
        super().__init__(topic, lambda: Wire(name, process, skies, story, linger_s))
        self.name = name
        self.skies = skies
        self.reader: SlowReader | None = None  # the newest
        self.generation = 0  # of the brokers that a record was read from last
        self._finds_at_s = -1.0  # when questions are sent to the new leader

    async def check(self) -> str:
        await self.travel()
        return await super().check()

    async def end_offset(self) -> int:
        await self.travel()
        self.old_end = self._asked_end()
        end = await super().end_offset()
        await self.travel()
        return end

    def _asked_end(self) -> int | None:
        """The end in answers to questions, which go to another broker only after a moment."""
        cut, now_s = self.skies.leader_cut, asyncio.get_running_loop().time()
        if cut is None:
            return None
        if self._finds_at_s < cut.since_s:
            self._finds_at_s = now_s + self.skies.views.uniform(0.0, 3.0)
        return cut.end if now_s < self._finds_at_s else None

    async def agreed_end_offset(self) -> int:
        await self.travel()
        end = await super().agreed_end_offset()
        await self.travel()
        return end

    async def open_reader(self, start_offset: int) -> MemoryReader:
        await super().open_reader(start_offset)  # refuses; the reader itself is ours
        self.reader = SlowReader(self, self._topic, start_offset)
        return self.reader

    async def open_writer(self) -> Any:
        await self.travel()
        return await super().open_writer()

    async def travel(self) -> None:
        """One way to the brokers. Raises LogUnavailable after a while when they are out of reach."""
        weather, random = self.skies.of(self.name), self.skies.random
        if weather.log_cut:
            await asyncio.sleep(random.uniform(0.1, 1.0))
            if weather.log_cut:
                self.skies.struck("log_unreachable", self.name)
                raise LogUnavailable("out of reach")
        late_s = weather.reads_late_s
        match self.skies.fate(self.name, ("question_lost", "question_late")):
            case "question_lost":
                await asyncio.sleep(LOST_S)
                raise LogUnavailable("no answer")
            case "question_late":
                late_s = LATE_S
        await asyncio.sleep(random.uniform(0.0002, 0.002) + (random.uniform(0.0, late_s) if late_s else 0.0))


class SlowReader(MemoryReader):
    """Reads late, not at all, or broken, as the weather decides."""

    _log: SimulatedLog
    _topic: Topic
    silent = False

    def __init__(self, log: SimulatedLog, topic: Topic, start_offset: int) -> None:
        super().__init__(log, topic, start_offset)
        self._view = View(log.skies)
        self.generation = topic.generation

    @property
    def old_end(self) -> int | None:  # type: ignore[override]
        return self._next if self.silent else self._view.old_end()

    def _find_failure(self) -> NotaryError | None:
        if self._topic.generation != self.generation:
            return LogUnavailable("the broker is gone")
        return super()._find_failure()

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        records = await super().read(max_records, wait_s)
        if records:
            self._log.generation = self.generation
        return records

    async def _wait(self, wait_s: float) -> None:
        if self._next == self.old_end:
            await asyncio.sleep(wait_s)  # nothing wakes it
        elif self._next == self._topic.end_offset:
            await self._topic.wait_for_change(wait_s)
        weather, random = self._log.skies.of(self._log.name), self._log.skies.random
        late_s = weather.reads_late_s
        if late_s:
            self._log.skies.struck("read_late", self._log.name)
        what = self._log.skies.fate(self._log.name, ("read_late", "read_lost"))
        if what == "read_late":
            late_s = LATE_S
        await asyncio.sleep(random.uniform(0.0002, 0.002) + (random.uniform(0.0, late_s) if late_s else 0.0))
        if what == "read_lost":
            self._failure = LogUnavailable("no answer")
        if weather.log_cut:
            await asyncio.sleep(wait_s)
            self._log.skies.struck("log_unreachable", self._log.name)
            self._failure = LogUnavailable("out of reach")


def _generation(topic: MemoryTopic) -> int:
    return topic.generation if isinstance(topic, Topic) else 0


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
