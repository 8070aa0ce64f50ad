"""Completing the acceptances of commands from the log, while the follower reads on: each is written once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from replica.following.apply import Applier
from replica.following.commands import complete_commands
from replica.index.commands import offset_of
from replica.index.memory import MemoryCommands, MemoryIndex
from replica.log.memory import MemoryLog, MemoryReader, MemoryTopic
from replica.notary.errors import LogRefused
from replica.notary.records import BarrierRecord, RequestRecord, encode_record
from replica.settings import CoreSettings
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import state, submission
from tests.worlds.ha_world import LoopClock

TOPIC_ID = "memory-1"
RECORDS = 12


def a_topic() -> MemoryTopic:
    """A log of rules 1 that accepts a command with each record but the first."""
    topic = MemoryTopic(TOPIC_ID)
    topic.store(encode_record(BarrierRecord(1, b"a" * 16, "r1", "postgres:1:1", 1, 1)))
    for number in range(RECORDS - 1):
        sent = submission(number, [state(number)], command_id=f"c{number}")
        topic.store(encode_record(RequestRecord(1, b"a" * 16, number, 1_000 + number, sent)))
    return topic


class SlowLog(MemoryLog):
    """Others act while it is asked."""

    async def open_reader(self, start_offset: int) -> MemoryReader:
        await asyncio.sleep(0.1)
        return await super().open_reader(start_offset)


class Turns(LoopClock):
    """Lets somebody else act in every pause."""

    def __init__(self, meanwhile: Callable[[], None]) -> None:
        super().__init__()
        self._meanwhile = meanwhile

    async def sleep_s(self, delay_s: float) -> None:
        await super().sleep_s(delay_s)
        self._meanwhile()


@pytest.mark.parametrize("batch", [1, 3, 500])
@pytest.mark.parametrize("lag", [1, 2, 5, 11])
def test_the_follower_reads_on_while_acceptances_are_completed(lag: int, batch: int) -> None:
    """Goal: no acceptance is written twice, none is left out. Method: the follower applies one record in each pause,
    from every distance; the last pause was the one after both tables were equal."""

    async def story() -> None:
        topic, index = a_topic(), MemoryIndex()
        follower = Applier(index, TOPIC_ID)
        follower.apply(topic.records(0, lag))
        index.commands = MemoryCommands()  # as after a release that moves the states only

        def read_on() -> None:
            at = follower.position.offset + 1
            if at < RECORDS:
                follower.apply(topic.records(at, 1))

        settings = CoreSettings(read_batch_max=batch)
        await complete_commands(MemoryLog(topic), index, TOPIC_ID, clock=Turns(read_on), settings=settings)
        while follower.position.offset + 1 < RECORDS:
            read_on()
        whole = MemoryIndex()
        Applier(whole, TOPIC_ID).apply(topic.records(0, RECORDS))
        assert list(index.commands.entries()) == list(whole.commands.entries())
        assert offset_of(index.commands.position()) == RECORDS - 1
        assert index.commands.entry_count == RECORDS - 1

    run_virtually(story())


@pytest.mark.parametrize("ahead", [0, 3])
def test_acceptances_of_another_log_are_refused(ahead: int) -> None:
    """Goal: nobody is judged by what another log accepted. Method: the table of commands has read another record at the
    index's position, or past it, as after a restored folder."""

    async def story() -> None:
        topic, other = a_topic(), a_topic()
        other._records[5 + ahead] = b"another record"
        index, elsewhere = MemoryIndex(), MemoryIndex()
        Applier(index, TOPIC_ID).apply(topic.records(0, 6))
        Applier(elsewhere, TOPIC_ID).apply(other.records(0, 6 + ahead))
        index.commands = elsewhere.commands
        with pytest.raises(LogRefused, match="not the one that was applied"):
            await complete_commands(MemoryLog(topic), index, TOPIC_ID, clock=LoopClock(), settings=CoreSettings())

    run_virtually(story())


def test_acceptances_that_are_ahead_are_of_this_log() -> None:
    """Goal: a crash that tore the states only is no damage. Method: the table is ahead; the follower passes it while
    the log is asked; nothing is written twice."""

    async def story() -> None:
        topic = a_topic()
        index, whole = MemoryIndex(), MemoryIndex()
        follower = Applier(index, TOPIC_ID)
        follower.apply(topic.records(0, 6))
        Applier(whole, TOPIC_ID).apply(topic.records(0, 9))
        index.commands = whole.commands
        completing = asyncio.create_task(
            complete_commands(SlowLog(topic), index, TOPIC_ID, clock=LoopClock(), settings=CoreSettings())
        )
        await asyncio.sleep(0.05)
        follower.apply(topic.records(6, RECORDS))
        await completing
        assert offset_of(index.commands.position()) == RECORDS - 1
        assert index.commands.entry_count == RECORDS - 1

    run_virtually(story())
