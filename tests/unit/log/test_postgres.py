"""The request log on Postgres without Postgres: the contract over the server in memory, what a reader may give on, and
seeds of bad weather with the mistakes that they must find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from random import Random

import pytest

from replica.log.interface import LogRecords, RequestLog
from replica.log.postgres import log as product
from replica.log.postgres.delivery import Appended, Batch, Bounds, Delivery, Look
from replica.log.postgres.log import PostgresLog, ServerOfLog
from replica.log.postgres.memory import MemoryServer, MemorySession, MemoryWeather
from replica.log.postgres.reader import PostgresReader
from replica.log.postgres.session import ServerIdentity
from replica.log.postgres.settings import PostgresLogSettings
from replica.notary.errors import LogRefused, LogTruncated, LogUnavailable
from tests.simulation.virtual import run_virtually
from tests.unit.log.test_contract import LogContract

SETTINGS = PostgresLogSettings(conninfo="dbname=memory", answer_max_s=2.0, poll_every_s=0.05)


# ---- the contract ----


class PostgresInMemory:
    """A MemoryServer as the contract suite sees it."""

    def __init__(self) -> None:
        self.server = MemoryServer()

    def log(self) -> RequestLog:
        return PostgresLog(SETTINGS, self.server.connect)

    async def put(self, *values: bytes | None) -> None:
        for value in values:
            self.server.store([value])  # type: ignore[list-item]

    async def cut_off(self, first_offset: int) -> None:
        self.server.cut_off(first_offset)

    async def recreate(self) -> None:
        self.server.recreate("00000000-0000-0000-0000-000000000002")


class TestPostgresInMemory(LogContract):
    @pytest.fixture
    def topic_under_test(self) -> PostgresInMemory:
        return PostgresInMemory()


# ---- what a reader may give on ----


def look(end: int, position: int, *batches: Batch) -> Look:
    return Look("log", end, position, None, batches)


def batch(first: int, *records: bytes | None) -> Batch:
    return Batch(first, first + len(records), records)


def test_a_batch_is_given_on_once_the_position_of_the_look_that_showed_it_is_flushed() -> None:
    delivery = Delivery(0, 0)
    delivery.see(look(2, 100, batch(0, b"a", None)))
    for flushed in (None, 0, 99):
        delivery.release(flushed)
        assert delivery.take(10) == []
    delivery.see(look(3, 150, batch(2, b"c")))
    delivery.release(100)  # on the limit counts
    assert delivery.take(10) == [(0, b"a"), (1, b"")]
    assert delivery.holds
    delivery.release(150)
    assert delivery.take(10) == [(2, b"c")]
    assert (delivery.holds, delivery.held_bytes) == (False, 0)


def test_a_reader_that_starts_inside_a_batch_skips_what_is_before() -> None:
    delivery = Delivery(2, 0)
    delivery.see(look(3, 1, batch(0, b"a", b"b", b"c")))
    delivery.release(1)
    assert delivery.take(10) == [(2, b"c")]


@pytest.mark.parametrize(
    ("shown", "error"),
    [
        (look(4, 1), LogTruncated),  # ends before what was read
        (look(6, 1), LogTruncated),  # says more than there is
        (look(7, 1, batch(6, b"g")), LogTruncated),  # goes on later
        (look(7, 1, batch(5, b"f"), batch(5, b"f")), LogTruncated),
        (look(6, 1, batch(5, b"f", b"g")), LogRefused),  # a batch after the end
        (look(7, 1, Batch(5, 7, [b"f"])), LogRefused),
    ],
)
def test_head_and_batches_that_differ_are_refused(shown: Look, error: type[LogRefused]) -> None:
    with pytest.raises(error):
        Delivery(5, 5).see(shown)


def test_bounds_are_refused_where_the_head_was_moved() -> None:
    Bounds("log", 5, 0, 0, 5, 0, 10).require_whole()
    Bounds("log", 0, 0, None, None, None, 10).require_whole()
    with pytest.raises(LogTruncated):
        Bounds("log", 6, 0, 0, 5, 0, 10).require_whole()
    with pytest.raises(LogTruncated):
        Bounds("log", 6, 0, None, None, None, 10).require_whole()
    with pytest.raises(LogRefused, match="go on to 5"):
        Bounds("log", 4, 0, 0, 5, 0, 10).require_whole()


def test_timelines_only_grow_and_the_system_stays() -> None:
    server = ServerOfLog()
    for timeline in (1, 1, 3):
        server.admit(ServerIdentity("7", timeline))
    with pytest.raises(LogUnavailable, match="old primary"):
        server.admit(ServerIdentity("7", 2))
    with pytest.raises(LogRefused, match="another system"):
        server.admit(ServerIdentity("8", 3))
    for named in ("oracle:7:9", "memory:memory:9", "postgres:8:9", "postgres:7", "elsewhere", ""):
        server.require(named)  # of another database
    server.admit(ServerIdentity("7", 4))
    server.require("postgres:7:5")
    with pytest.raises(LogUnavailable, match="old primary"):
        server.admit(ServerIdentity("7", 4))


def test_a_database_that_granted_an_epoch_is_required_before_the_log_was_ever_reached() -> None:
    """Goal: a replica that starts on an old primary reads nothing there. Method: what its index knows, then a session
    on the old one."""
    server = ServerOfLog()
    server.require("postgres:7:2")
    with pytest.raises(LogUnavailable, match="old primary"):
        server.admit(ServerIdentity("7", 1))
    server.admit(ServerIdentity("7", 2))


def test_whoever_is_connected_to_an_old_primary_leaves_it() -> None:
    """Goal: an open reader returns nothing more of an old primary, not even what it has fetched, and a writer appends
    nothing there. Method: a barrier that a later timeline granted becomes known while both are open."""

    async def story() -> None:
        server = MemoryServer()
        server.store([b"a", b"b"])
        log = PostgresLog(SETTINGS, server.connect)
        reader, writer = await log.open_reader(0), await log.open_writer()
        assert await reader.read(1, 1.0) == [(0, b"a")]
        log.require_database("postgres:1:2")
        with pytest.raises(LogUnavailable, match="old primary"):
            await reader.read(1, 1.0)
        with pytest.raises(LogUnavailable, match="old primary"):
            writer.append(b"c")
        with pytest.raises(LogUnavailable, match="old primary"):
            await log.end_offset()
        log._connect = server.promote().connect
        assert await (await log.open_reader(0)).read(2, 1.0) == [(0, b"a"), (1, b"b")]
        assert log.database == "postgres:1:2"
        await log.close()
        assert server.end_offset == 2

    run_virtually(story())


def test_a_writer_that_nobody_gives_anything_connects_again_within_a_tenth_of_a_second() -> None:
    """Goal: the next caller does not find out. Method: the server ends an idle writer's session, and the question's;
    then it is away for a second, and what is handed over meanwhile is appended as it comes back."""

    async def story() -> None:
        server = MemoryServer()
        log = PostgresLog(SETTINGS, server.connect)
        writer = await log.open_writer()
        writer.append(b"a")
        assert await log.end_offset() in (0, 1)
        await asyncio.sleep(100)
        for session in tuple(server.sessions):
            session.hang_up()
        await asyncio.sleep(0.1)
        assert writer.is_connected
        assert len(server.sessions) == 1
        assert await log.end_offset() == 1
        writer.append(b"b")
        await asyncio.sleep(0.1)
        server.stop()
        await asyncio.sleep(0.5)
        assert not (writer.is_connected or writer.has_ended)
        writer.append(b"c")
        await asyncio.sleep(0.5)
        server.is_up = True
        await asyncio.sleep(0.1)
        assert writer.is_connected
        assert await (await log.open_reader(0)).read(4, 1.0) == [(0, b"a"), (1, b"b"), (2, b"c")]
        await log.close()

    run_virtually(story())


def test_a_writer_that_connects_again_goes_to_no_other_server() -> None:
    """Goal: what was granted by one primary is not written to the next one, nor to a log that went back. Method: a
    promotion while it is idle; a log that lost its end."""

    async def story() -> None:
        for change in ("promoted", "shorter"):
            server = MemoryServer()
            log = PostgresLog(SETTINGS, server.connect)
            writer = await log.open_writer()
            writer.append(b"a")
            await asyncio.sleep(1)
            if change == "promoted":
                log._connect = server.promote().connect
            else:
                server.stop()
                server.recreate(str(server.log_id))
                server.is_up = True
            await asyncio.sleep(3)
            assert writer.has_ended
            await log.close()

    run_virtually(story())


def test_a_writer_whose_server_does_not_come_back_ends() -> None:
    """Goal: whoever writes next does so on another connection. Method: the server ends; nothing is appended; a second
    writer, of the server that is up again, works."""

    async def story() -> None:
        server = MemoryServer()
        log = PostgresLog(SETTINGS, server.connect)
        reader, writer = await log.open_reader(0), await log.open_writer()
        writer.append(b"a")
        await asyncio.sleep(100)
        assert not writer.has_ended
        server.stop()
        await asyncio.sleep(2.1)
        assert writer.has_ended
        assert writer.failed_count == 0
        server.is_up = True
        writer, reader = await log.open_writer(), await log.open_reader(0)
        writer.append(b"b")
        assert await reader.read(1, 1.0) + await reader.read(1, 1.0) == [(0, b"a"), (1, b"b")]
        await log.close()

    run_virtually(story())


class OneBatchALook(MemoryWeather):
    def batches_shown(self) -> int:
        return 1


def test_a_reader_that_catches_up_looks_while_its_caller_works() -> None:
    """Goal: no wait between two looks, and no failure before what was fetched. Method: three batches, one in each look;
    after the first read the server ends."""

    async def story() -> None:
        server = MemoryServer(weather=OneBatchALook())
        for value in (b"a", b"b", b"c"):
            server.store([value])
        log = PostgresLog(SETTINGS, server.connect)
        reader = await log.open_reader(0)
        assert await reader.read(10, 1.0) == [(0, b"a")]
        await asyncio.sleep(0.1)  # the caller's work
        server.stop()
        assert await reader.read(10, 1.0) == [(1, b"b")]
        with pytest.raises(LogUnavailable):
            await reader.read(10, 1.0)
        await log.close()

    run_virtually(story())


# ---- bad weather ----

SEEDS = range(60)
WRITERS, APPENDS = 3, 12
FAULTS_S = 2.0  # then the weather is good, after a promotion in half of the seeds
WAIT_MAX_S = 10 * SETTINGS.poll_every_s  # for a record in good weather


class SeededWeather(MemoryWeather):
    """Everything goes wrong now and then, until `calm`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.calm = False

    def way_s(self) -> float:
        return self._random.uniform(0.0, 0.002)

    def commit_s(self) -> float:
        return self._random.uniform(0.0, 0.005)

    def replication_s(self) -> float:
        return self._random.choice((0.001, 0.003, 0.003 if self.calm else 0.3))

    def notify_is_lost(self) -> bool:
        return self._random.random() < 0.2  # in good weather as well: it is no fault

    def batches_shown(self) -> int:
        return self._random.choice((1, 2, 256))

    def cut_at(self) -> str | None:
        return None if self.calm else self._random.choice((None, None, None, "before", "after"))

    def waits_for_standby(self) -> bool:
        return self.calm or self._random.random() < 0.8

    def backend_is_ended(self) -> bool:
        return not self.calm and self._random.random() < 0.3


class Follower:
    """A replica that applies what it reads, whatever becomes of servers and connections."""

    def __init__(self) -> None:
        self.applied: list[bytes] = []

    async def follow(self, log: PostgresLog) -> None:
        """Read on until cancelled. Raises LogRefused."""
        while True:
            try:
                reader = await log.open_reader(len(self.applied))
                while True:
                    self.apply(await reader.read(5, 0.2))
            except LogUnavailable:
                await asyncio.sleep(0.01)

    def apply(self, records: LogRecords) -> None:
        for offset, value in records:
            assert offset == len(self.applied), "a gap"
            self.applied.append(value)


async def append_through(log: PostgresLog, name: int, random: Random) -> None:
    """Append values of one's own, each handed over once; a writer that failed is replaced."""
    writer = await log.open_writer()
    for number in range(APPENDS):
        try:
            writer.append_all([b"%d %d %d" % (name, number, part) for part in range(random.randint(1, 3))])
        except LogUnavailable:
            writer = await log.open_writer()
        await asyncio.sleep(random.uniform(0.0, 0.15))


async def play(seed: int, make_server: Callable[[MemoryWeather], MemoryServer]) -> list[Batch]:
    """One seed; returns what was committed.

    Fails when records are lost, doubled, reordered or taken back, and when one in good weather is late.
    """
    random = Random(seed)
    weather = SeededWeather(random)
    server = make_server(weather)
    followers, logs = [Follower(), Follower()], [PostgresLog(SETTINGS, server.connect) for _ in range(2)]
    log = logs[0]  # has the writers: an active's; the other is a passive's
    async with asyncio.TaskGroup() as group:
        following = [group.create_task(one.follow(its)) for one, its in zip(followers, logs, strict=True)]
        writing = [asyncio.create_task(append_through(log, name, random)) for name in range(WRITERS)]
        await asyncio.sleep(random.uniform(0.3, FAULTS_S))
        server.standby_is_up = False  # commits wait for it, and some are shown nevertheless
        await asyncio.sleep(random.uniform(0.0, 0.3))
        server.standby_is_up = True
        if random.random() < 0.5:
            server = server.promote()
            for one in logs:
                one._connect = server.connect  # what libpq does with several hosts
        await asyncio.gather(*writing, return_exceptions=True)  # some were refused, or found no server
        weather.calm = True
        server.replicate(server.position)
        await asyncio.sleep(1.0)  # for statements whose clients are gone
        for number in range(5):
            writer = await log.open_writer()
            writer.append(b"calm %d" % number)
            await asyncio.sleep(WAIT_MAX_S)
            for follower in followers:
                assert follower.applied[-1:] == [b"calm %d" % number], "late"
        for task in following:
            task.cancel()
    for one in logs:
        await one.close()
    values = [value for shown in sorted(server.batches, key=lambda one: one.first_offset) for value in shown.records]
    for follower in followers:
        assert follower.applied == values, "taken back"
    assert len(set(values)) == len(values), "twice"
    return list(server.batches)


def server_of(weather: MemoryWeather) -> MemoryServer:
    return MemoryServer(weather=weather)


@pytest.mark.parametrize("seed", SEEDS)
def test_bad_weather_loses_doubles_and_takes_back_nothing(seed: int) -> None:
    run_virtually(play(seed, server_of))


@pytest.mark.parametrize("seed", SEEDS[:10])
def test_a_seed_plays_the_same_way_every_time(seed: int) -> None:
    """Goal: a seed in a test's name replays its failure. Method: twice, at other addresses in memory."""
    first, kept = run_virtually(play(seed, server_of)), [object() for _ in range(1_000 + 7 * seed)]
    assert run_virtually(play(seed, server_of)) == first
    assert kept


# ---- the mistakes that the seeds must find ----


class HeadNotLocked(MemoryServer):
    """Offsets from a sequence: drawn at once, shown in the order of commits."""

    async def append(self, values: Sequence[bytes], backend: int = 0) -> int:
        first, self.end_offset = self.end_offset, self.end_offset + len(values)
        await asyncio.sleep(self.weather.commit_s())
        self.commit(first, values)
        self._replicate_later(self.position)
        return first


def head_not_locked(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryWeather], MemoryServer]:
    return lambda weather: HeadNotLocked(weather=weather)


def delivered_before_the_standby_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[MemoryWeather], MemoryServer]:
    class Careless(Delivery):
        def release(self, flushed: int | None) -> None:
            super().release(1 << 62)

    monkeypatch.setattr(product, "Delivery", Careless)
    return server_of


def held_to_the_position_of_an_earlier_look(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[MemoryWeather], MemoryServer]:
    class Hasty(Delivery):
        _earlier = 0

        def see(self, look: Look) -> None:
            super().see(Look(look.log_id, look.end_offset, self._earlier, look.flushed, look.batches))
            self._earlier = look.position

    monkeypatch.setattr(product, "Delivery", Hasty)
    return server_of


def appended_again_after_an_unknown_outcome(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[MemoryWeather], MemoryServer]:
    append_once = MemorySession.append

    async def append(self: MemorySession, log_id: str, values: Sequence[bytes], standbys: int) -> Appended:
        try:
            return await append_once(self, log_id, values, standbys)
        except LogUnavailable:
            return Appended(await self._server.append(values), self._server.position, self._server.replicated)

    monkeypatch.setattr(MemorySession, "append", append)
    return server_of


def notify_believed(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryWeather], MemoryServer]:
    hear = MemorySession.heard

    async def heard(self: MemorySession, wait_s: float) -> bool:
        while not self.notified.is_set() and not self._woken.is_set():
            await asyncio.sleep(0.01)
            self._require_open()
        return await hear(self, 0.0)

    monkeypatch.setattr(MemorySession, "heard", heard)
    return server_of


def an_answer_taken_for_replicated(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryWeather], MemoryServer]:
    make = Appended.look

    def look(self: Appended, log_id: str, records: Sequence[bytes]) -> Look:
        return make(Appended(self.first_offset, self.position, self.position), log_id, records)

    monkeypatch.setattr(Appended, "look", look)
    return server_of


def an_offer_taken_while_a_look_shows_it_too(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[MemoryWeather], MemoryServer]:
    monkeypatch.setattr(
        PostgresReader, "_looking", property(lambda self: False, lambda self, value: None), raising=False
    )
    return server_of


def failed_reader_goes_on(monkeypatch: pytest.MonkeyPatch) -> Callable[[MemoryWeather], MemoryServer]:
    """What a look brought before the connection failed is counted as read, and never given on."""

    async def read(self: PostgresReader, max_records: int, wait_s: float) -> LogRecords:
        records = await read_once(self, max_records, wait_s)
        return records[: max(1, len(records) - 1)]

    read_once = PostgresReader.read
    monkeypatch.setattr(PostgresReader, "read", read)
    return server_of


MISTAKES = [
    head_not_locked,
    delivered_before_the_standby_has_it,
    held_to_the_position_of_an_earlier_look,
    appended_again_after_an_unknown_outcome,
    notify_believed,
    an_answer_taken_for_replicated,
    an_offer_taken_while_a_look_shows_it_too,
    failed_reader_goes_on,
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_each_mistake_is_found_by_a_seed(
    mistake: Callable[[pytest.MonkeyPatch], Callable[[MemoryWeather], MemoryServer]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: the seeds above can fail. Method: one mistake at a time in the server, the reader or the writer."""
    make_server, found = mistake(monkeypatch), False
    for seed in SEEDS:
        try:
            run_virtually(play(seed, make_server))
        except* (AssertionError, LogRefused):
            found = True
        if found:
            return
    pytest.fail("no seed finds it")
