"""Only what is replicated is read: a primary with a synchronous standby, both real."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from ha.clock import SystemClock
from replica.following.follower import Follower
from replica.index.memory import MemoryIndex
from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer, find_binaries
from replica.log.postgres.install import install
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.writer import PostgresWriter
from replica.notary.errors import LogUnavailable
from replica.notary.granters import Database
from replica.notary.records import BarrierRecord, encode_record
from replica.settings import CoreSettings
from tests.integration.log_postgres.world import opened, run
from tests.next_version.release import PRESENT
from tests.unit.log.test_contract import READ_WAIT_S, read_all
from tests.waiting import eventually
from tests.worlds.beginning import no_demand

pytestmark = pytest.mark.postgres

STANDBY = "standby"
HELD_S = 0.7  # how long to look for a record that must not come
SETTINGS = {"shared_buffers": "16MB", "wal_receiver_status_interval": "1s", "wal_retrieve_retry_interval": "100ms"}
WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"


@dataclass
class Pair:
    """A primary that waits for its standby."""

    primary: PostgresServer
    standby: PostgresServer


@pytest.fixture
async def pair(servers_folder: Path, ports: PortReservation) -> AsyncIterator[Pair]:
    primary = PostgresServer(servers_folder / "log-primary", ports.take(), SETTINGS)
    standby = PostgresServer(servers_folder / "log-standby", ports.take(), SETTINGS)
    try:
        await primary.start()
        await install(primary.dsn())
        await standby.start_standby_of(primary, STANDBY)
        await primary.require_standby(STANDBY)
        await eventually(lambda: _has_standbys(primary, 1))
        yield Pair(primary, standby)
    finally:
        await standby.remove()
        await primary.remove()


async def _has_standbys(primary: PostgresServer, count: int) -> bool:
    rows = await run(primary.dsn(), "SELECT application_name FROM pg_stat_replication WHERE replay_lsn IS NOT NULL")
    return len(rows) == count


async def _waits(primary: PostgresServer) -> bool:
    return bool(await run(primary.dsn(), WAITING))


async def append_unreplicated(pair: Pair, log: PostgresLog, how: str) -> None:
    """Stop the standby, append, and end the wait of its commit: visible from then on, on the primary alone."""
    writer = await log.open_writer()
    await pair.standby.stop(immediate=True)
    await eventually(lambda: _has_standbys(pair.primary, 0))
    writer.append(b"unreplicated")
    await eventually(lambda: _waits(pair.primary))
    await run(pair.primary.dsn(), f"SELECT {how}(pid) FROM ({WAITING}) w")
    await require_given_up(writer)
    assert await run(pair.primary.dsn(), "SELECT end_offset FROM notary_log.log_head") == [(2,)]


async def require_given_up(writer: PostgresWriter) -> None:
    """The writer reports an unknown outcome, and is not used again."""
    await eventually(lambda: asyncio.sleep(0, writer.failed_count == 1))
    with pytest.raises(LogUnavailable, match="has failed"):
        writer.append(b"nothing after it")


@pytest.mark.parametrize("how", ["pg_terminate_backend", pytest.param("pg_cancel_backend", marks=pytest.mark.thorough)])
async def test_a_commit_that_the_standby_lacks_is_not_read_and_nobody_has_it_after_promotion(
    pair: Pair, how: str
) -> None:
    """Goal: no reader acts on a record that a promotion takes back.

    Method: end the backend that waits for the stopped standby, so that its commit shows on the primary. Readers that
    were open and new ones look; one that asks for no standby is the proof that there was something to see. Promote.
    """
    settings = {"single_server": False, "answer_max_s": 2.0}
    async with opened(pair.primary.dsn(), **settings) as log, opened(pair.primary.dsn()) as careless:
        first = await log.open_writer()
        first.append(b"replicated")
        reader = await log.open_reader(0)
        assert await read_all(reader, 1) == [(0, b"replicated")]
        await append_unreplicated(pair, log, how)

        late = await log.open_reader(0)
        assert await reader.read(10, HELD_S) == []
        assert await late.read(10, HELD_S) == []  # not even the first one: no notice comes now that a standby has it
        assert await log.agreed_end_offset() == 2  # nobody may say that the record is gone, either
        with pytest.raises(LogUnavailable, match="standbys lack records below offset 2"):
            await log.end_offset()
        assert await read_all(await careless.open_reader(0), 2) == [(0, b"replicated"), (1, b"unreplicated")]

        await pair.primary.stop(immediate=True)
        await pair.standby.start()
        await pair.standby.promote()
        async with opened(pair.standby.dsn()) as promoted:
            assert await promoted.end_offset() == 1
            after = await promoted.open_writer()
            after.append(b"after the promotion")
            records = await read_all(await promoted.open_reader(0), 2)
            assert records == [(0, b"replicated"), (1, b"after the promotion")]


async def test_a_planned_promotion_takes_everything_with_it(pair: Pair) -> None:
    """Goal: a primary that is stopped in order leaves nothing behind. Method: append, stop it, promote, go on."""
    async with opened(pair.primary.dsn(), single_server=False) as log:
        writer, reader = await log.open_writer(), await log.open_reader(0)
        values = [b"%d" % number for number in range(300)]
        for value in values:
            writer.append(value)
        assert [value for _, value in await read_all(reader, 300)] == values
        await pair.primary.stop()
        with pytest.raises(LogUnavailable):
            await read_all(reader, 1)
    await pair.standby.promote()
    async with opened(pair.standby.dsn()) as promoted:
        (await promoted.open_writer()).append(b"after")
        found = await read_all(await promoted.open_reader(0), 301)
        assert [value for _, value in found] == [*values, b"after"]
        assert promoted.database is not None and promoted.database.endswith(":2")


@pytest.mark.thorough
async def test_what_was_held_is_read_once_the_standby_has_it(pair: Pair) -> None:
    """Goal: the rule costs a wait, not a record. Method: the same, then the standby comes back."""
    async with opened(pair.primary.dsn(), single_server=False) as log:
        (await log.open_writer()).append(b"replicated")
        reader = await log.open_reader(0)
        await read_all(reader, 1)
        await append_unreplicated(pair, log, "pg_terminate_backend")
        assert await reader.read(10, HELD_S) == []
        await pair.standby.start()
        assert await read_all(reader, 1) == [(1, b"unreplicated")]
        assert await log.end_offset() == 2


@pytest.mark.thorough
async def test_commits_that_a_restart_shows_are_held_as_well(pair: Pair) -> None:
    """Goal: a crash of the primary in a commit's wait shows it too. Method: stop both; the primary is up first."""
    async with opened(pair.primary.dsn(), single_server=False) as log:
        (await log.open_writer()).append(b"replicated")
        await read_all(await log.open_reader(0), 1)
        writer = await log.open_writer()
        await pair.standby.stop(immediate=True)
        await eventually(lambda: _has_standbys(pair.primary, 0))
        writer.append(b"unreplicated")
        await eventually(lambda: _waits(pair.primary))
        await pair.primary.stop(immediate=True)
        await require_given_up(writer)
        await pair.primary.start()
        assert await run(pair.primary.dsn(), "SELECT end_offset FROM notary_log.log_head") == [(2,)]
        reader = await log.open_reader(1)
        assert await reader.read(10, HELD_S) == []
        await pair.standby.start()
        assert await read_all(reader, 1) == [(1, b"unreplicated")]


@pytest.mark.thorough
async def test_emptied_standby_names_change_nothing_for_readers(pair: Pair) -> None:
    """Goal: our own count, not the server's setting. Method: do what high-availability managers do by themselves."""
    async with opened(pair.primary.dsn(), single_server=False) as log:
        writer, reader = await log.open_writer(), await log.open_reader(0)
        await pair.primary.require_standby("")
        await pair.standby.stop(immediate=True)
        await eventually(lambda: _has_standbys(pair.primary, 0))
        writer.append(b"unreplicated")
        await eventually(lambda: _has_end(log, 1))
        assert await reader.read(10, HELD_S) == []
        assert writer.failed_count == 0  # what an append reports is never a verdict
        await pair.standby.start()
        assert await read_all(reader, 1) == [(0, b"unreplicated")]


@pytest.mark.thorough
async def test_only_what_can_be_promoted_counts_as_a_standby(pair: Pair, tmp_path: Path) -> None:
    """Goal: neither a copy of the WAL nor the same standby twice replaces a standby.

    Method: a running pg_receivewal, which reports what it has flushed; two standbys are asked for where one is
    there."""
    assert await run(pair.primary.dsn(), "SELECT notary_log.flushed(2)") == [(None,)]
    await run(pair.primary.dsn(), "SELECT pg_create_physical_replication_slot('receiver')")
    source = make_conninfo(pair.primary.dsn(), application_name="receiver")
    receiving = await asyncio.create_subprocess_exec(
        find_binaries() / "pg_receivewal", f"--directory={tmp_path}", "--slot=receiver", "--synchronous", "-d", source
    )
    try:
        shown = "SELECT flush_lsn IS NOT NULL FROM pg_stat_replication WHERE application_name = 'receiver'"
        await eventually(lambda: _equals(pair.primary, shown, [(True,)]))
        assert await run(pair.primary.dsn(), "SELECT notary_log.flushed(2)") == [(None,)]
        assert await run(pair.primary.dsn(), "SELECT notary_log.flushed(1) IS NULL") == [(False,)]
    finally:
        receiving.kill()
        await receiving.wait()


@pytest.mark.thorough
async def test_a_hot_standby_is_refused(pair: Pair) -> None:
    """Goal: what a standby shows may be taken back by another promotion. Method: open everything there."""
    async with opened(pair.standby.dsn(), single_server=False) as log:
        for asking in (log.check, log.open_writer, lambda: log.open_reader(0)):
            with pytest.raises(LogUnavailable):
                await asking()


@dataclass
class Promoted:
    """Two primaries of one system: the first was not fenced."""

    old: PostgresServer
    new: PostgresServer
    granted: BarrierRecord  # by the new one, and in its log
    hosts: str  # the old one first


@pytest.fixture
async def promoted(pair: Pair) -> Promoted:
    """Both have a first record; then each has its own, and the new one the barrier of an activation."""
    async with opened(pair.primary.dsn(), single_server=False) as log:
        (await log.open_writer()).append(b"of both")
        await read_all(await log.open_reader(0), 1)
        assert log.database is not None
        system = log.database.split(":")[1]
    await pair.standby.promote()
    await pair.primary.require_standby("")
    granted = BarrierRecord(7, b"z" * 16, "r1", Database("postgres", system, 2), PRESENT.records, PRESENT.rules)
    for server, values in ((pair.standby, [encode_record(granted), b"x", b"y"]), (pair.primary, [b"of the old one"])):
        async with opened(server.dsn()) as log:
            (await log.open_writer()).append_all(values)
            await read_all(await log.open_reader(1), len(values))
            assert log.database == f"postgres:{system}:{2 if server is pair.standby else 1}"
    dsn, ports = pair.primary.dsn(), f"{pair.primary.port},{pair.standby.port}"
    return Promoted(pair.primary, pair.standby, granted, make_conninfo(dsn, host="127.0.0.1,127.0.0.1", port=ports))


@pytest.mark.thorough
async def test_whoever_knows_the_new_primary_leaves_the_old_one(promoted: Promoted) -> None:
    """Goal: of two primaries, the one that came first is left alone, by what is open as well. Method: readers on the
    old one; the barrier that the new one granted becomes known."""
    async with opened(promoted.hosts) as log:
        reader, writer = await log.open_reader(0), await log.open_writer()
        assert await reader.read(1, READ_WAIT_S) == [(0, b"of both")]
        log.require_database(str(promoted.granted.granter))
        with pytest.raises(LogUnavailable, match="an old primary answers: its timeline is 1, 2 was seen"):
            await reader.read(1, READ_WAIT_S)
        with pytest.raises(LogUnavailable, match="an old primary"):
            writer.append(b"nothing")
        assert await log.end_offset() == 4  # the second host is tried as soon as the first is refused
        found = await read_all(await log.open_reader(0), 4)
        assert [value for _, value in found] == [b"of both", encode_record(promoted.granted), b"x", b"y"]
    async with opened(promoted.old.dsn()) as log:
        log.require_database(str(promoted.granted.granter))
        for asking in (log.check, log.end_offset, log.open_writer, lambda: log.open_reader(0)):
            with pytest.raises(LogUnavailable, match="an old primary"):
                await asking()


@pytest.mark.thorough
async def test_a_replica_that_applied_the_new_primary_s_barrier_waits_where_only_the_old_one_answers(
    promoted: Promoted,
) -> None:
    """Goal: the old primary's shorter log is no loss, and ends no replica. Method: a follower reads the new log. It
    starts again on the old server alone, and then with both."""
    index, settings = MemoryIndex(), CoreSettings(log_retry_s=0.1)
    async with opened(promoted.new.dsn()) as log, following(log, index, settings) as follower:
        await eventually(lambda: asyncio.sleep(0, follower.applied_offset == 3))
    async with opened(promoted.old.dsn()) as log, following(log, index, settings) as follower:
        await asyncio.sleep(HELD_S)
        assert not follower.reaches_log()
    async with opened(promoted.hosts) as log, following(log, index, settings) as follower:
        await eventually(lambda: asyncio.sleep(0, follower.reaches_log()))
        assert follower.applied_offset == 3
        assert log.database == str(promoted.granted.granter)


@asynccontextmanager
async def following(log: PostgresLog, index: MemoryIndex, settings: CoreSettings) -> AsyncIterator[Follower]:
    """A replica's follower. Its end within the block is an error."""
    follower = Follower(log, index, SystemClock(), settings, lambda _: None, require=no_demand)
    task = asyncio.create_task(follower.run())
    try:
        yield follower
        if task.done():
            task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.thorough
async def test_a_host_that_never_answers_does_not_keep_the_log_from_the_next_one(pair: Pair) -> None:
    """Goal: a lost machine costs a fraction of a second. Method: the first host takes connections and is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = f"{silent.getsockname()[1]},{pair.primary.port}"
        hosts = make_conninfo(pair.primary.dsn(), host="127.0.0.1,127.0.0.1", port=port)
        async with opened(hosts, single_server=False, connect_timeout_s=60.0) as log, asyncio.timeout(30.0):
            await log.check()


async def _has_end(log: PostgresLog, end: int) -> bool:
    return await log.agreed_end_offset() == end


async def _equals(server: PostgresServer, query: str, rows: list[tuple[object, ...]]) -> bool:
    return await run(server.dsn(), query) == rows
