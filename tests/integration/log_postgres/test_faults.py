"""What happens to appends when backends are ended, connections are cut or frozen, and the server crashes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.log.postgres.install import install
from replica.log.postgres.log import PostgresLog
from replica.log.postgres.session import BATCHES_MAX, PostgresSession, connect, connection_parameters, read
from replica.notary.errors import LogUnavailable
from tests.integration.log_postgres.cutting import Allowance, CuttingProxy, Link
from tests.integration.log_postgres.world import PARTITION_RECORDS, looking, opened, run, settings_for
from tests.small_disk import fill, small_disk
from tests.unit.log.test_contract import READ_WAIT_S, numbered, read_all
from tests.waiting import eventually

pytestmark = pytest.mark.postgres

WRITERS, EACH = 16, 120
TOGETHER = 60  # connections that are held in silence at once
SILENCE_S = 3.0
SMALL, SMALL_MIB = {"shared_buffers": "16MB", "min_wal_size": "32MB", "max_wal_size": "64MB"}, 160
WARM = 7_000  # the first of the batches that are appended before a link is cut
SYNC_BYTES = 5  # the last message, which ends a transaction: the append has committed before it
CONNECT_MAX_S = 30.0  # on a busy machine
BACKENDS = "SELECT pid FROM pg_stat_activity WHERE application_name = 'notary_log' AND datname = current_database()"


async def values_in(dsn: str) -> list[bytes]:
    """The whole log, read as a new replica would."""
    async with opened(dsn) as log:
        count = await log.end_offset()
        return [value for _, value in await read_all(await log.open_reader(0), count)] if count else []


# ---- order ----


async def test_sixteen_writers_have_one_order_without_a_gap(dsn: str) -> None:
    """Goal: offsets are dense in the order of commits, across partitions. Method: 16 writers, two readers beside."""
    async with opened(dsn) as log, opened(dsn) as theirs:
        readers = [await log.open_reader(0), await theirs.open_reader(0)]
        reading = [asyncio.create_task(read_all(reader, WRITERS * EACH)) for reader in readers]

        async def write(name: int) -> None:
            writer = await log.open_writer()
            for number in range(EACH):
                writer.append(b"%d %d" % (name, number))
                if number % 7 == 0:
                    await asyncio.sleep(0.002)

        await asyncio.gather(*(write(name) for name in range(WRITERS)))
        records, others = await asyncio.gather(*reading)
        assert records == others
        assert [offset for offset, _ in records] == list(range(WRITERS * EACH))
        for name in range(WRITERS):  # each writer's own order is kept, although that is not promised
            own = [value for _, value in records if value.startswith(b"%d " % name)]
            assert own == [b"%d %d" % (name, number) for number in range(EACH)]
    partitions = await run(dsn, "SELECT count(*) FROM pg_inherits WHERE inhparent = 'notary_log.log_batch'::regclass")
    assert partitions == [(4,)]  # below 1,000, below 2,000, and two ahead of the second


# ---- ended backends ----


async def test_an_idle_writer_whose_backend_was_ended_connects_again_by_itself(dsn: str) -> None:
    """Goal: no caller finds out. Method: end every backend of the log; wait for the writer's new one; append."""
    async with opened(dsn) as log:
        writer = await log.open_writer()
        writer.append(b"first")
        assert await read_all(await log.open_reader(0), 1) == [(0, b"first")]
        assert not writer.has_ended
        await run(dsn, f"SELECT pg_terminate_backend(pid) FROM ({BACKENDS}) b")
        before = writer.backend
        await eventually(lambda: asyncio.sleep(0, writer.is_connected and writer.backend != before))
        assert not writer.has_ended
        writer.append(b"second")
        assert await read_all(await log.open_reader(1), 1) == [(1, b"second")]
    assert await values_in(dsn) == [b"first", b"second"]


@pytest.mark.parametrize("function", ["pg_terminate_backend", "pg_cancel_backend"])
async def test_a_backend_that_is_ended_in_the_append_leaves_nothing(dsn: str, function: str) -> None:
    """Goal: all or nothing, and nobody else is held up. Method: hold the head, end the backend that waits for it."""
    async with opened(dsn) as log, looking(dsn) as other:
        writer = await log.open_writer()
        async with other.transaction():
            await other.execute("SELECT FROM notary_log.log_head FOR UPDATE")
            writer.append_all(numbered(3))
            waiting = f"{BACKENDS} AND wait_event_type = 'Lock'"

            async def waits() -> bool:
                return bool(await run(dsn, waiting))

            await eventually(waits)
            writer.append(b"queued meanwhile")
            await run(dsn, f"SELECT {function}(pid) FROM ({waiting}) b")
            await eventually(lambda: asyncio.sleep(0, writer.failed_count == 4))
        after = await log.open_writer()
        after.append(b"after")
        assert await read_all(await log.open_reader(0), 1) == [(0, b"after")]


async def test_an_append_that_waits_too_long_for_the_head_is_given_up(dsn: str) -> None:
    """Goal: bounded. Method: somebody holds the head's row; nothing of the append is there once its lock is
    released."""
    async with opened(dsn, answer_max_s=1.0) as log, looking(dsn) as other:
        writer = await log.open_writer()
        async with other.transaction():
            await other.execute("SELECT FROM notary_log.log_head FOR UPDATE")
            writer.append(b"given up")
            await eventually(lambda: asyncio.sleep(0, writer.failed_count == 1))

        async def ended() -> bool:
            return not await run(dsn, f"{BACKENDS} AND state = 'active'")

        await eventually(ended)
    assert await values_in(dsn) == []


# ---- the stream of bytes ----


@pytest.fixture
async def proxy(dsn: str) -> AsyncIterator[CuttingProxy]:
    server = conninfo_to_dict(dsn)
    async with CuttingProxy(str(server["host"]), int(str(server["port"]))) as made:
        yield made


async def linked(dsn: str, proxy: CuttingProxy, number: int) -> tuple[PostgresSession, Link, str]:
    """A session through the proxy, its link, and the log's id. It has appended once, the batch WARM + `number`: later
    appends are all alike."""
    settings = settings_for(make_conninfo(dsn, host="127.0.0.1", port=proxy.port), answer_max_s=CONNECT_MAX_S)
    known = len(proxy.links)
    session = await connect(settings, lambda identity: None)
    bounds = await session.bounds(0)
    assert len(proxy.links) == known + 1
    await session.append(bounds.log_id, batch_of(WARM + number), 0)
    session._answer_max_s = SILENCE_S
    return session, proxy.links[-1], bounds.log_id


async def exchange_bytes(dsn: str, proxy: CuttingProxy) -> tuple[int, int]:
    """How many bytes an append of `batch_of` has, and its answer."""
    session, link, log_id = await linked(dsn, proxy, 0)
    link.arm(Allowance())
    await session.append(log_id, batch_of(0), 0)
    session.hang_up()
    return link.to_server, link.to_client


def batch_of(number: int) -> list[bytes]:
    return [b"%04d-%d" % (number, part) for part in range(3)]


def require_whole(values: list[bytes], answered: set[int], cut: set[int]) -> set[int]:
    """Each batch is in the log once and whole or never, and those that were answered are. Returns the unknown ones
    that are there."""
    times = Counter(values)
    there = {number for number in answered | cut if times[batch_of(number)[0]]}
    for number in there:
        at = values.index(batch_of(number)[0])
        assert values[at : at + 3] == batch_of(number)
        assert [times[value] for value in batch_of(number)] == [1, 1, 1]
    assert len(values) == 3 * len(there)
    assert answered <= there
    return there - answered


@pytest.mark.thorough
async def test_a_connection_cut_at_each_byte_of_the_append(dsn: str, proxy: CuttingProxy) -> None:
    """Goal: a statement is in the log once and whole, or never. Method: cut at every byte, of either direction."""
    there, back = await exchange_bytes(dsn, proxy)
    cuts = [Allowance(to_server=count) for count in range(there)] + [Allowance(to_client=n) for n in range(back)]
    unknown: set[int] = set()
    for number, cut in enumerate(cuts, 1):
        session, link, log_id = await linked(dsn, proxy, number)
        link.arm(cut)
        with pytest.raises(LogUnavailable):
            await session.append(log_id, batch_of(number), 0)
        session.hang_up()
        unknown.add(number)
    answered = {0, WARM} | {WARM + number for number in unknown}
    committed = require_whole(await values_in(dsn), answered, unknown)
    assert committed == {number for number in unknown if number > there - SYNC_BYTES}  # the server had the whole of it


@pytest.mark.thorough
async def test_a_connection_held_at_each_byte_of_the_append_holds_up_nobody(dsn: str, proxy: CuttingProxy) -> None:
    """Goal: a client that is frozen or cut off holds no lock. Method: hold at every byte, append beside."""
    there, back = await exchange_bytes(dsn, proxy)
    stops = [Allowance(to_server=count, freeze=True) for count in range(there)]
    stops += [Allowance(to_client=count, freeze=True) for count in range(back)]
    numbers = dict(enumerate(stops, 1))
    answered = {0, WARM} | {WARM + number for number in numbers}
    async with looking(dsn) as other:
        row = await (await other.execute("SELECT log_id::text FROM notary_log.log_head")).fetchone()
        assert row is not None
        for start in range(1, len(stops) + 1, TOGETHER):
            held = {number: numbers[number] for number in range(start, min(start + TOGETHER, len(stops) + 1))}
            sessions = {number: await linked(dsn, proxy, number) for number in held}
            for number, (_, link, _) in sessions.items():
                link.arm(held[number])
            appends = [
                asyncio.create_task(session.append(log_id, batch_of(number), 0))
                for number, (session, _, log_id) in sessions.items()
            ]
            await asyncio.sleep(0.1)
            beside = 5_000 + start
            literal = "{" + ",".join("\\\\x" + value.hex() for value in batch_of(beside)) + "}"
            await asyncio.wait_for(
                other.execute("SELECT notary_log.append(%s, %s)", (row[0], literal)), SILENCE_S - 0.5
            )
            answered.add(beside)
            assert not any(append.done() for append in appends)  # they were silent while that was appended
            results = await asyncio.gather(*appends, return_exceptions=True)
            assert {type(result) for result in results} == {LogUnavailable}
            for session, link, _ in sessions.values():
                session.hang_up()
                link.abort()
    committed = require_whole(await values_in(dsn), answered, set(numbers))
    assert committed == {number for number in numbers if number > there - SYNC_BYTES}


async def test_writers_that_are_killed_or_frozen_hold_up_nobody(dsn: str) -> None:
    """Goal: no writer depends on another process. Method: four writers, each a process; two are killed, one is frozen
    in the middle of what it does, and the last one goes on; nothing is twice, and each has lost its newest at most."""
    async with opened(dsn) as log, AsyncExitStack() as stack:
        writers = [stack.enter_context(_writer(dsn, name)) for name in ("a", "b", "c", "d")]
        reader, seen = await log.open_reader(0), list[tuple[int, bytes]]()

        async def read_until_each_has(count: int, names: str) -> None:
            async with asyncio.timeout(CONNECT_MAX_S):
                while any(sum(value.startswith(name.encode()) for _, value in seen) < count for name in names):
                    seen.extend(await reader.read(500, READ_WAIT_S))

        await read_until_each_has(30, "abcd")
        for writer, number in zip(writers, (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP), strict=False):
            writer.send_signal(number)
        end = await log.end_offset()
        await read_until_each_has(1 + sum(value.startswith(b"d") for _, value in seen) + 300, "d")
        assert seen[-1][0] > end
        for writer in writers:
            writer.kill()
    assert [offset for offset, _ in seen] == list(range(len(seen)))
    for name in "abcd":
        own = [value for _, value in seen if value.startswith(name.encode())]
        assert own == [f"{name} {number}".encode() for number in range(len(own))]


async def test_a_writer_that_is_stopped_at_twelve_moments_holds_up_nobody(dsn: str) -> None:
    """Goal: wherever a process stands still, others append and read. Method: SIGSTOP one that appends all the time, at
    twelve moments of what it does; meanwhile another one's records are read back; then let it go on. Nothing twice."""
    async with opened(dsn, answer_max_s=60.0) as log, AsyncExitStack() as stack:
        other = stack.enter_context(_writer(dsn, "a"))
        reader, writer, seen = await log.open_reader(0), await log.open_writer(), list[bytes]()

        async def read_until(value: bytes) -> None:
            async with asyncio.timeout(CONNECT_MAX_S):
                while value not in seen[-500:]:
                    seen.extend(found for _, found in await reader.read(500, READ_WAIT_S))

        await read_until(b"a 30")
        for moment in range(12):
            await asyncio.sleep(0.000_3 * moment)
            other.send_signal(signal.SIGSTOP)
            for number in range(20):
                writer.append(b"beside %d %d" % (moment, number))
                await read_until(b"beside %d %d" % (moment, number))
            other.send_signal(signal.SIGCONT)
            following = 3 + sum(value.startswith(b"a ") for value in seen)
            await read_until(b"a %d" % following)
    own = [value for value in seen if value.startswith(b"a ")]
    assert own == [b"a %d" % number for number in range(len(own))]
    assert sum(value.startswith(b"beside") for value in seen) == 12 * 20


async def test_a_backend_that_is_killed_in_its_commit_leaves_all_or_nothing(own_server: PostgresServer) -> None:
    """Goal: SIGKILL of a backend restarts the server; nothing is there twice, and what was read is there. Method: kill
    the writer's backend while it appends all the time, until an append has no answer; three times."""
    dsn, appended = own_server.dsn(), list[bytes]()
    await install(dsn, partition_records=PARTITION_RECORDS)
    for life in range(3):
        async with opened(dsn) as log:
            writer = await log.open_writer()
            with suppress(LogUnavailable):
                for number in range(100_000):
                    writer.append(value := b"%d %d" % (life, number))
                    appended.append(value)
                    if number >= 200 and number % 37 == life:  # one that owes nothing just then connects again
                        with suppress(ProcessLookupError):
                            os.kill(writer.backend, signal.SIGKILL)
                    await asyncio.sleep(0.000_5)
            assert writer.failed_count > 0
        await eventually(lambda: _answers(dsn), CONNECT_MAX_S)
    values = await values_in(dsn)
    assert max(Counter(values).values()) == 1
    for life in range(3):
        own = [value for value in values if value.startswith(b"%d " % life)]
        assert own == [b"%d %d" % (life, number) for number in range(len(own))]
        assert len(own) > 0


async def _answers(dsn: str) -> bool:
    with suppress(psycopg.Error):
        return await run(dsn, "SELECT 1") == [(1,)]
    return False


@contextmanager
def _writer(dsn: str, name: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "tests.integration.log_postgres.writing", dsn, name]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


# ---- the server ----


@pytest.fixture
def own_server(servers_folder: Path, ports: PortReservation) -> Iterator[PostgresServer]:
    """A server that the test may crash."""
    server = PostgresServer(servers_folder / "postgres-of-a-log", ports.take(), {"shared_buffers": "16MB"})
    asyncio.run(server.start())
    yield server
    asyncio.run(server.remove())


async def test_a_crash_of_the_server_loses_nothing_that_was_read(own_server: PostgresServer) -> None:
    """Goal: readers and writers fail, and go on with new ones; nothing twice. Method: immediate shutdown under load."""
    dsn = own_server.dsn()
    await install(dsn, partition_records=PARTITION_RECORDS)
    async with opened(dsn) as log:
        writer, reader, seen = await log.open_writer(), await log.open_reader(0), list[tuple[int, bytes]]()

        async def write() -> None:
            number = 0
            with suppress(LogUnavailable):
                while True:
                    writer.append(b"record %d" % number)
                    number += 1
                    await asyncio.sleep(0.001)

        writing = asyncio.create_task(write())
        while len(seen) < 100:
            seen += await reader.read(500, READ_WAIT_S)
        await own_server.stop(immediate=True)
        with pytest.raises(LogUnavailable):
            while True:
                seen += await reader.read(500, READ_WAIT_S)
        await writing
        assert writer.failed_count > 0
        await own_server.start()
        after = await log.open_writer()
        after.append(b"after")
        end = await log.end_offset()
        values = [value for _, value in await read_all(await log.open_reader(0), max(end, len(seen) + 1))]
        assert list(enumerate(values))[: len(seen)] == seen
        assert max(Counter(values).values()) == 1
        assert values[:-1] == numbered(len(values) - 1)


async def test_a_full_disk_loses_nothing_and_the_log_goes_on_once_there_is_room(
    servers_folder: Path, ports: PortReservation
) -> None:
    """Goal: an append without room fails, or the server does; no record is lost or doubled. Method: a server on a small
    file system, filled under appends; room is made, and a new writer goes on."""
    with small_disk(servers_folder / "small", SMALL_MIB) as folder:
        folder.chmod(0o755)
        server = PostgresServer(folder, ports.take(), SMALL)
        try:
            await server.start()
            dsn = server.dsn()
            await install(dsn)
            async with opened(dsn) as log:
                writer, size = await log.open_writer(), 50_000
                writer.append_all(values := [b"%d" % number + bytes(size) for number in range(100)])
                await read_all(await log.open_reader(0), 100)
                fill(folder / "filler")
                with pytest.raises(LogUnavailable):
                    for number in range(100, 2_000):
                        writer.append(b"%d" % number + bytes(size))
                        values.append(b"%d" % number + bytes(size))
                        await asyncio.sleep(0.002)
                assert writer.failed_count > 0
            (folder / "filler").unlink()
            async with opened(dsn) as log:
                await eventually(lambda: _goes_on(log), 60.0)
                end = await log.end_offset()
                found = [value for _, value in await read_all(await log.open_reader(0), end)]
                kept = [value for value in found if value != b"after"]
                assert len(kept) >= 100
                assert kept == values[: len(kept)]
                assert found[-1] == b"after"
        finally:
            await server.stop(immediate=True)


async def _goes_on(log: PostgresLog) -> bool:
    """Whether one more record is in the log. A server that gave up recovers first."""
    with suppress(LogUnavailable):
        before = await log.end_offset()
        writer = await log.open_writer()
        writer.append(b"after")
        async with asyncio.timeout(10):
            while await log.end_offset() == before:
                await asyncio.sleep(0.01)
        return True
    return False


async def test_a_long_snapshot_holds_up_neither_writer_nor_reader(dsn: str) -> None:
    """Goal: somebody's open snapshot keeps dead versions of the head, and nothing else. Method: append beside one."""
    async with opened(dsn) as log, await psycopg.AsyncConnection.connect(dsn) as other:
        await other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await other.execute("SELECT end_offset FROM notary_log.log_head")
        writer, reader = await log.open_writer(), await log.open_reader(0)
        for number in range(200):
            writer.append(b"record %d" % number)
            assert await read_all(reader, 1) == [(number, b"record %d" % number)]
        assert await (await other.execute("SELECT end_offset FROM notary_log.log_head")).fetchone() == (0,)
        await other.rollback()


@pytest.mark.thorough
async def test_the_head_is_found_beside_all_its_dead_versions(dsn: str) -> None:
    """Goal: an append and a look cost the same, however many versions of the head a snapshot keeps. Method: count the
    pages that they touch, before 4,000 appends beside a snapshot and after them."""
    await run(dsn, "DROP SCHEMA notary_log CASCADE")
    await install(dsn)  # one partition is enough
    parameters = connection_parameters(settings_for(dsn))
    async with (
        await psycopg.AsyncConnection.connect(**parameters, autocommit=True) as own,  # type: ignore[arg-type]
        await psycopg.AsyncConnection.connect(dsn) as other,
    ):
        for _ in range(3):  # the first one fills the server's caches, and is planned
            before = await _pages(own)
        await other.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        await other.execute("SELECT FROM notary_log.log_head")
        await own.execute("SET statement_timeout = 0")
        await own.execute(_APPEND_OFTEN)
        (dead,) = (await run(dsn, "SELECT pg_relation_size('notary_log.log_head') / 8192"))[0]
        assert isinstance(dead, int) and dead > 30
        appended, looked = await _pages(own)
        assert appended <= before[0] + 3, f"{before[0]} pages, then {appended}"
        assert looked <= before[1] + 3, f"{before[1]} pages, then {looked}"
        await other.rollback()
        await own.execute("VACUUM notary_log.log_head")
        assert max(*await _pages(own), *await _pages(own)) <= max(before) + 3


_APPEND_OFTEN = """
DO $$ BEGIN
    FOR n IN 1 .. 4000 LOOP PERFORM notary_log.append(log_id, '{x}') FROM notary_log.log_head; COMMIT; END LOOP;
END $$
"""


async def _pages(own: psycopg.AsyncConnection[tuple[object, ...]]) -> tuple[int, int]:
    """How many pages one append touches, and one look at the end of the log."""
    explain = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
    row = await (await own.execute("SELECT log_id, end_offset + 1 FROM notary_log.log_head")).fetchone()
    assert row is not None
    look = {"start": row[1], "bytes_max": 1 << 20, "standbys": 0, "held": False, "batches_max": BATCHES_MAX}
    found = []
    for query, values in ((b"SELECT notary_log.append(%(log)s, '{x}')", {"log": row[0]}), (read("look"), look)):
        explained = await (await own.execute(explain + query, values)).fetchone()
        plan = cast("tuple[Any]", explained)[0][0]["Plan"]
        found.append(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])
    return found[0], found[1]
