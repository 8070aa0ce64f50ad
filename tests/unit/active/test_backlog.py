"""Judging a backlog again: what the log decided, run by run, whatever the runs are and however far the index is."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from replica.active.backlog import judged_again, publish_backlog
from replica.active.completions import completions_of
from replica.following.apply import Applied, Applier
from replica.index.memory import MemoryIndex
from replica.log.interface import LogReader, LogRecords
from replica.log.memory import MemoryLog, MemoryTopic
from replica.notary.errors import LogRefused
from replica.notary.position import POSITION_VERSION, Position, begin
from replica.settings import CoreSettings
from replica.store.interface import Published, Row
from tests.simulation.virtual import run_virtually
from tests.worlds.checker_world import good_world

TOPIC_ID = "memory-1"
# Many reads, and many runs in each: far below what may be configured.
SMALL = CoreSettings(read_batch_max=40).model_copy(update={"read_batch_states_max": 20})


class Recording:
    """A store that notes what is published."""

    def __init__(self) -> None:
        self.completions: list[Row] = []
        self.positions: list[Position] = []

    async def publish(self, completions: list[Row], position: Position) -> int:
        self.completions += completions
        self.positions.append(position)
        return 0


class LateLog(MemoryLog):
    """Its readers have nothing for their first seconds: they connect to servers that have just started, on a busy
    machine."""

    def __init__(self, topic: MemoryTopic, late_s: float) -> None:
        super().__init__(topic)
        self._late_s = late_s

    async def open_reader(self, start_offset: int) -> LogReader:
        reader, opened_s = await super().open_reader(start_offset), asyncio.get_running_loop().time()
        read = reader.read

        async def late(max_records: int, wait_s: float) -> LogRecords:
            left_s = opened_s + self._late_s - asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, min(left_s, wait_s)))
            return [] if left_s > wait_s else await read(max_records, wait_s)

        reader.read = late  # type: ignore[method-assign]
        return reader


def a_topic() -> MemoryTopic:
    topic = MemoryTopic(TOPIC_ID)
    for value in good_world(4, steps=600).values:
        topic.store(value)
    return topic


def applied_one_by_one(topic: MemoryTopic) -> tuple[MemoryIndex, list[Applied]]:
    index = MemoryIndex()
    applier = Applier(index, TOPIC_ID)
    return index, [applier.apply([record]) for record in topic.records(0, topic.end_offset)]


@pytest.mark.parametrize("after", [-1, 0, 57])
async def test_a_backlog_of_several_runs_is_judged_as_it_was(after: int) -> None:
    """Goal: nothing of a backlog is left out, and old records get their old verdicts. Method: an index that is at the
    log's end judges again from three places, in reads of many runs; compared with the first time, one by one."""
    topic = a_topic()
    index, first = applied_one_by_one(topic)
    position = begin(TOPIC_ID) if after < 0 else first[after].position
    expected = [one for applied in first[after + 1 :] for one in completions_of(applied)]
    for store_end in (topic.end_offset - 1, topic.end_offset - 30):
        applied_to = first[store_end].position
        again = judged_again(MemoryLog(topic), index, position, applied_to=applied_to, settings=SMALL)
        async with aclosing(again):
            runs = [applied async for applied in again]
        assert len(runs) > 2 * (store_end - after) / SMALL.read_batch_max
        assert runs[-1].position == applied_to
        found = [one for applied in runs for one in completions_of(applied)]
        assert found == [one for one in expected if one[1].log_offset <= store_end]
    assert len(expected) > 50


async def test_a_backlog_is_published_to_its_end() -> None:
    """Goal: a new activation serves after all of the backlog. Method: publish one of many runs to a store that notes
    it; the result names the end; what the store was given is what the log decided."""
    topic = a_topic()
    index, first = applied_one_by_one(topic)
    store = Recording()
    published = await publish_backlog(
        MemoryLog(topic),
        index,
        store,  # type: ignore[arg-type]
        published=Published(None, 0, 0),
        applied_to=first[-1].position,
        settings=SMALL,
    )
    assert len(store.positions) > 5
    assert published.position == store.positions[-1] == first[-1].position
    assert store.completions == [one for applied in first for one in completions_of(applied)]
    assert published.ledger_end == len(store.completions)


@pytest.mark.parametrize("after", [-1, 5])
def test_a_reader_may_take_seconds_until_its_first_record(after: int) -> None:
    """Goal: the first activation on a new cluster does not fail once. Method: readers that connect for 4 s, where
    nothing is published yet, and where something is."""
    topic = a_topic()
    index, first = applied_one_by_one(topic)
    position = None if after < 0 else first[after].position
    store = Recording()

    async def story() -> Published:
        return await publish_backlog(
            LateLog(topic, late_s=4.0),
            index,
            store,  # type: ignore[arg-type]
            published=Published(position, 0, 0),
            applied_to=first[-1].position,
            settings=SMALL,
        )

    assert run_virtually(story()).position == first[-1].position


async def test_it_refuses_what_it_cannot_judge() -> None:
    """Goal: a record is never judged by another log. Method: a position of another record."""
    topic = a_topic()
    index, first = applied_one_by_one(topic)
    other = first[-1].position
    position = Position(POSITION_VERSION, b"L" * 16, TOPIC_ID, 5, b"d" * 32, first[5].position.barrier, 0, 0, ())
    with pytest.raises(LogRefused):
        await anext(judged_again(MemoryLog(topic), index, position, applied_to=other, settings=SMALL))
