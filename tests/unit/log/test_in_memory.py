"""The request log in another process's memory: the contract over a socket, and what is left when that process ends."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from replica.log.in_memory.server import MemoryLogServer, TimedTopic
from replica.log.in_memory.settings import MemoryLogSettings
from replica.log.interface import RequestLog
from replica.log.open import open_log, open_log_admin
from replica.notary.errors import LogRefused, LogUnavailable
from tests.unit.log.test_contract import LogContract, numbered, read_all
from tests.waiting import eventually


class InMemoryUnderTest:
    """A server of our own as the contract suite sees it."""

    def __init__(self, folder: Path) -> None:
        self.settings = MemoryLogSettings(socket_path=folder / "log.sock")
        self.topic = TimedTopic("memory:1")
        self.server = MemoryLogServer(self.topic)

    def log(self) -> RequestLog:
        return open_log(self.settings)

    async def put(self, *values: bytes | None) -> None:
        for value in values:
            self.topic.store(value or b"")

    async def cut_off(self, first_offset: int) -> None:
        self.topic.cut_off(first_offset)

    async def recreate(self) -> None:
        self.topic.recreate("memory:2")


@pytest.fixture
async def topic_under_test() -> AsyncIterator[InMemoryUnderTest]:
    with tempfile.TemporaryDirectory(prefix="log-") as folder:  # a short path: a socket's has 107 bytes at most
        world = InMemoryUnderTest(Path(folder))
        await world.server.start(world.settings.socket_path)
        yield world
        await world.server.stop()


class TestLogInMemory(LogContract):
    pass


async def test_a_server_that_ends_leaves_nothing_that_goes_on(topic_under_test: InMemoryUnderTest) -> None:
    """Goal: no reader waits and no writer takes what nobody has. Method: stop the server under all that is open."""
    log = topic_under_test.log()
    await log.check()
    reader, writer = await log.open_reader(0), await log.open_writer()
    writer.append(b"first")
    assert await read_all(reader, 1) == [(0, b"first")]
    waiting = asyncio.create_task(reader.read(1, 60.0))
    await asyncio.sleep(0.05)
    await topic_under_test.server.stop()
    with pytest.raises(LogUnavailable):
        await waiting

    async def is_over() -> bool:
        try:
            writer.append(b"late")
        except LogUnavailable:
            return True
        return False

    await eventually(is_over)
    for asked in (log.end_offset, log.check, log.open_writer):
        with pytest.raises(LogUnavailable):
            await asked()
    await log.close()


async def test_another_process_s_log_is_not_taken_for_the_one_that_is_gone(topic_under_test: InMemoryUnderTest) -> None:
    """Goal: a restart, which loses all, is noticed. Method: another server on the same socket, under a log in use."""
    log = topic_under_test.log()
    assert await log.check() == "memory:1"
    await topic_under_test.server.stop()
    other = MemoryLogServer(TimedTopic("memory:9"))
    await other.start(topic_under_test.settings.socket_path)
    with pytest.raises(LogUnavailable):
        await log.end_offset()  # the connection that it had
    with pytest.raises(LogRefused, match="created anew"):
        await log.end_offset()
    with pytest.raises(LogRefused, match="created anew"):
        await log.open_reader(0)
    await log.close()
    await other.stop()


async def test_the_archive_s_columns_are_time_and_value(topic_under_test: InMemoryUnderTest) -> None:
    """Goal: an archive can be made of it. Method: more records than one answer takes, a range within, one too far."""
    for value in numbered(2_500):
        topic_under_test.topic.store(value)
    admin = open_log_admin(topic_under_test.settings)

    def read(first: int, end: int) -> list[tuple[int, int, bytes | None]]:
        return [
            (offset, time_ms, value)
            for part in admin.stretch(first, end)
            for offset, (time_ms, value) in enumerate(zip(part.times_ms, part.values, strict=True), part.first_offset)
        ]

    found = await asyncio.to_thread(read, 3, 2_500)
    assert [(offset, value) for offset, _, value in found] == list(enumerate(numbered(2_500)))[3:]
    assert [time_ms for _, time_ms, _ in found] == topic_under_test.topic.times_ms[3:]
    with pytest.raises(LogRefused, match="no offset 2500"):
        await asyncio.to_thread(read, 2_490, 2_501)
    survey = await admin.survey()
    assert (survey.log_id, survey.first_offset, survey.end_offset) == ("memory:1", 0, 2_500)
    assert await admin.create() == "memory:1"
    await admin.close()


async def test_a_full_queue_is_told_and_takes_nothing(topic_under_test: InMemoryUnderTest) -> None:
    """Goal: a writer's memory is bounded. Method: a queue of three records, filled before the server answers."""
    log = open_log(topic_under_test.settings.model_copy(update={"append_queue_max": 3}))
    writer = await log.open_writer()
    writer.append_all(numbered(3))
    with pytest.raises(LogUnavailable, match="full"):
        writer.append(b"too many")
    reader = await log.open_reader(0)
    assert await read_all(reader, 3) == list(enumerate(numbered(3)))
    await log.close()
