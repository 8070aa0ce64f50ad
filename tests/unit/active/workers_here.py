"""Workers over one log and one database in memory, and logs that are late, lose or end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from replica.log.interface import Lifeline
from replica.log.memory import Delivery, MemoryLog, MemoryTopic, MemoryWriter
from replica.notary.answers import Answer
from replica.notary.errors import LogUnavailable
from tests.worlds.core_world import Shared, World, state, submission
from tests.worlds.worker_world import WorkerReplica


class Late(Delivery):
    """Records reach the log after up to 30 ms, in any order; now and then one twice."""

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)

    def send(self, value: bytes, topic: MemoryTopic, give_up: object) -> None:
        loop = asyncio.get_running_loop()
        for _ in range(1 + (self._random.random() < 0.1)):
            loop.call_later(0.03 * self._random.random(), topic.store, value)


class Losing(Delivery):
    """Loses what is sent while `is_losing`, without a word."""

    is_losing = False

    def send(self, value: bytes, topic: MemoryTopic, give_up: object) -> None:
        if not self.is_losing:
            topic.store(value)


class Keeping(Delivery):
    """Keeps what is sent while `is_keeping`: it may be stored later."""

    is_keeping = False

    def __init__(self) -> None:
        self.kept: list[bytes] = []

    def send(self, value: bytes, topic: MemoryTopic, give_up: object) -> None:
        if self.is_keeping:
            self.kept.append(value)
        else:
            topic.store(value)


class EndingWriter(MemoryWriter):
    """Ends as a writer whose connection breaks: what it was given last may be in the log, or come there yet."""

    ended = False

    @property
    def has_ended(self) -> bool:
        return self.ended or super().has_ended

    def append(self, value: bytes) -> None:
        if self.ended:
            raise LogUnavailable("the writer has failed")
        super().append(value)


class SharedLog(MemoryLog):
    """See WatchingLog. Its other writers would draw the log to the replica's own server."""

    def __init__(self, topic: MemoryTopic) -> None:
        super().__init__(topic)
        self.opened: list[EndingWriter] = []

    def tie(self, activation_id: bytes) -> Lifeline:
        raise NotImplementedError

    async def wait_for_end(self, activation_id: bytes) -> None:
        raise NotImplementedError

    async def open_shared_writer(self) -> EndingWriter:
        self.opened.append(EndingWriter(self, self._topic, Delivery()))
        return self.opened[-1]

    async def open_writer(self) -> MemoryWriter:
        raise AssertionError("it draws the log to its own server")


def writers_that_end(worker: WorkerReplica, delivery: Delivery) -> list[EndingWriter]:
    """The writers that this replica opens from now on."""
    opened: list[EndingWriter] = []

    async def open_writer() -> EndingWriter:
        await asyncio.sleep(0.01)
        if not worker.log.reachable:
            raise LogUnavailable("out of reach")
        opened.append(EndingWriter(worker.log, worker.shared.topic, delivery))
        return opened[-1]

    worker.log.open_writer = open_writer  # type: ignore[method-assign]
    return opened


async def sent_and_not_stored(
    worker: WorkerReplica, tx: int, keeping: Keeping, writers: list[EndingWriter]
) -> asyncio.Task[list[Answer]]:
    """A submission whose record the newest writer was given before it ended."""
    keeping.is_keeping, count = True, len(keeping.kept)
    asking = asyncio.create_task(worker.submit(submission(tx, [state(tx)])))
    await asyncio.sleep(0.01)
    assert len(keeping.kept) == count + 1
    keeping.is_keeping, writers[-1].ended = False, True
    return asking


@asynccontextmanager
async def cluster(*workers: WorkerReplica, world: World, cores: int = 2) -> AsyncIterator[None]:
    """Cores that hold the lock in turn, and workers; all serve on entry."""
    replicas = [await world.replica(number + 1) for number in range(cores)]
    if replicas:
        await replicas[0].until_active()
    for worker in workers:
        worker.start()
    try:
        for worker in workers:
            await worker.until_serving()
        yield
    finally:
        for worker in workers:
            await worker.stop()


def make(shared: Shared, *deliveries: Delivery) -> list[WorkerReplica]:
    return [
        WorkerReplica(shared, f"W{at}", lambda delivery=delivery: delivery)  # type: ignore[misc]
        for at, delivery in enumerate(deliveries or (Delivery(),), 1)
    ]


async def keep_asking(worker: WorkerReplica, first: int, count: int) -> list[Answer]:
    """Requests one after the other, each with a state of its own."""
    answers: list[Answer] = []
    for tx in range(first, first + count):
        answers += await worker.submit(submission(tx, [state(tx)], submission_id=f"s{tx}"))
    return answers


def unbroken(*workers: WorkerReplica) -> None:
    assert [error for worker in workers for error in worker.broken] == []
