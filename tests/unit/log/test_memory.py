"""The log in memory: the faults that tests and the simulator bring about with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

import pytest

from replica.log.memory import Delivery, MemoryLog, MemoryTopic
from replica.notary.errors import LogRefused, LogUnavailable
from tests.contracts.log_machine import CutLogMachine, memory_world
from tests.contracts.side_by_side import played


def test_it_answers_as_it_should() -> None:
    """Goal: see LogMachine. Method: random calls, to two of them."""
    played(partial(CutLogMachine, memory_world, memory_world), examples=30, steps=40)


class Held(Delivery):
    """Keeps records until the test decides what becomes of them."""

    def __init__(self) -> None:
        self.on_the_way: list[Callable[[], None]] = []
        self.give_ups: list[Callable[[], None]] = []

    def send(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        if len(self.on_the_way) == 3:
            raise LogUnavailable("the queue is full")
        self.on_the_way.append(lambda: topic.store(value))
        self.give_ups.append(give_up)

    def purge(self) -> None:
        del self.on_the_way[1:]  # the first one was sent already


async def test_a_delivery_decides_how_records_travel() -> None:
    """Goal: loss, delay, repeats and reordering take one small class. Method: do each to three held records."""
    topic, held = MemoryTopic(), Held()
    writer = await MemoryLog(topic, lambda: held).open_writer()
    for value in (b"a", b"b", b"c"):
        writer.append(value)
    with pytest.raises(LogUnavailable, match="full"):
        writer.append(b"d")
    assert topic.end_offset == 0
    for arrival in (2, 0, 2):
        held.on_the_way[arrival]()
    held.give_ups[1]()
    assert topic.records(0, 10) == [(0, b"c"), (1, b"a"), (2, b"c")]
    assert writer.failed_count == 1


async def test_what_was_sent_before_the_purge_still_arrives() -> None:
    """Goal: a deposed active's late record can be played. Method: close the writer, then let its record arrive."""
    topic, held = MemoryTopic(), Held()
    writer = await MemoryLog(topic, lambda: held).open_writer()
    writer.append(b"sent")
    writer.append(b"queued")
    await writer.close()
    for arrive in held.on_the_way:
        arrive()
    assert topic.records(0, 10) == [(0, b"sent")]


async def test_a_log_out_of_reach_answers_nothing() -> None:
    """Goal: one replica is cut off while another goes on. Method: make one log unreachable, then reachable again."""
    topic = MemoryTopic()
    cut_off, other = MemoryLog(topic), MemoryLog(topic)
    reader, writer = await cut_off.open_reader(0), await cut_off.open_writer()
    cut_off.reachable = False
    writer.append(b"lost")
    assert writer.failed_count == 1
    for call in (cut_off.check, cut_off.end_offset, cut_off.open_writer, lambda: cut_off.open_reader(0)):
        with pytest.raises(LogUnavailable):
            await call()
    with pytest.raises(LogUnavailable):
        await reader.read(1, 0.0)
    (await other.open_writer()).append(b"kept")
    cut_off.reachable = True
    with pytest.raises(LogUnavailable):  # a reader that has failed stays so
        await reader.read(1, 0.0)
    assert await (await cut_off.open_reader(0)).read(10, 0.0) == [(0, b"kept")]


@pytest.mark.parametrize(
    "fault",
    [
        lambda topic: topic.truncate(1),
        lambda topic: topic.cut_off(3),
        lambda topic: topic.recreate("another"),
    ],
    ids=["truncated", "cut off", "created anew"],
)
async def test_a_waiting_reader_notices_that_its_place_is_gone(fault: Callable[[MemoryTopic], None]) -> None:
    """Goal: it refuses at once, and for good. Method: damage the topic under a long read, then fill it again."""
    topic = MemoryTopic()
    topic.store(b"a")
    topic.store(b"b")
    reader = await MemoryLog(topic).open_reader(2)
    waiting = asyncio.create_task(reader.read(1, 60.0))
    await asyncio.sleep(0)
    fault(topic)
    with pytest.raises(LogRefused):
        await waiting
    for value in (b"c", b"d", b"e"):
        topic.store(value)
    with pytest.raises(LogRefused):
        await reader.read(1, 0.0)
