"""The embedded ledger: the readers' contract, rows and position in one transaction, damage of every kind."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest

from replica.notary.errors import InvariantBroken, StoreMismatch, StoreUnavailable
from replica.notary.position import BEGIN, Position
from replica.store.interface import ParticipantStore, Published, Row
from replica.store.sqlite.file import Begun, LedgerFile
from replica.store.sqlite.ledger import EmbeddedLedger, open_or_make_anew
from replica.store.sqlite.reader import SqliteReader
from replica.store.sqlite.store import EmbeddedStore
from replica.store.sqlite.tables import FILE, LedgerDamaged, restored, stored
from tests.contracts.reader_contract import ReaderContract
from tests.contracts.side_by_side import played
from tests.contracts.store_contract import REJECTED, TOPIC, NewStore, at, command, completion
from tests.contracts.store_machine import LedgerMachine, LedgerWorld, memory_world
from tests.next_version.release import NEXT
from tests.waiting import eventually

RAISED = NEXT


class WritingStore(EmbeddedStore):
    """What the contract publishes is fed to the ledger first, as the follower does."""

    def __init__(self, ledger: EmbeddedLedger) -> None:
        super().__init__(ledger, TOPIC, RAISED)
        self._fed = ledger

    async def publish(self, completions: Sequence[Row], position: Position) -> int:
        if self._was_asked:  # else it refuses
            self._fed.feed(completions, [], self._fed.fed_offset, position)
        return await super().publish(completions, position)


@asynccontextmanager
async def running(file: LedgerFile) -> AsyncIterator[EmbeddedLedger]:
    ledger = EmbeddedLedger(file)
    task = asyncio.create_task(ledger.run())
    try:
        yield ledger
    finally:
        await ledger.stop()
        await task


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[EmbeddedLedger]:
    async with running(open_or_make_anew(tmp_path, TOPIC)) as made:
        yield made


@pytest.fixture
def new_store(ledger: EmbeddedLedger) -> NewStore:
    async def make() -> ParticipantStore:
        return WritingStore(ledger)

    return make


@pytest.fixture
async def reader(tmp_path: Path) -> AsyncIterator[SqliteReader]:
    made = SqliteReader(tmp_path / FILE)
    yield made
    await made.close()


def test_it_answers_as_the_double_does(tmp_path: Path) -> None:
    """Goal: see LedgerMachine. Method: random calls."""
    numbers = count()

    @asynccontextmanager
    async def world() -> AsyncIterator[LedgerWorld]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        async with running(open_or_make_anew(folder, TOPIC)) as ledger:

            async def new_store() -> ParticipantStore:
                return WritingStore(ledger)

            reader = SqliteReader(folder / FILE)
            yield LedgerWorld(new_store, reader)
            await reader.close()

    played(partial(LedgerMachine, memory_world, world), examples=15, steps=40)


class TestSqliteReader(ReaderContract):
    """See ReaderContract."""


def some(count: int, first: int = 0) -> list[Row]:
    done = [
        completion(command(n), 10 + n, REJECTED, detail=b"d" * n, recorded_us=n)
        if n % 3
        else completion(command(n), 10 + n, recorded_us=n)
        for n in range(first, first + count)
    ]
    return list(enumerate(done, first + 1))


def fill(folder: Path, count: int = 20) -> Path:
    file = LedgerFile(folder / FILE, TOPIC)
    file.append(some(count), [Begun(1, "r1", 0, 0)], at(10 + count, count))
    file.close()
    return folder / FILE


def test_a_row_is_restored_as_it_was() -> None:
    """Goal: nothing of a completion is lost, and none is taken for another. Method: one with each field set, with none;
    every bit of a stored row turned."""
    full = msgspec.structs.replace(
        completion(command(1), 7, REJECTED, detail=b"x"), deduplication_us=5, deduplication_after=6
    )
    for one in (full, completion(command(2), 8)):
        assert restored(stored(3, one)) == (3, one)
    row = stored(3, full)
    for column in (0, 1, 2, 4):
        for bit in range(31):
            turned = list(row)
            turned[column] ^= 1 << bit  # type: ignore[operator]
            with pytest.raises(LedgerDamaged):
                restored(tuple(turned))  # type: ignore[arg-type]
    for bit in range(8 * len(row[3])):
        body = bytearray(row[3])
        body[bit // 8] ^= 1 << bit % 8
        with pytest.raises(LedgerDamaged):
            restored((*row[:3], bytes(body), row[4]))


def test_rows_and_position_are_one_transaction(tmp_path: Path) -> None:
    """Goal: no completion without its position. Method: a run that fails after its rows, and one again."""
    path = fill(tmp_path)
    file = LedgerFile(path, TOPIC)
    before = file.progress()
    with pytest.raises(LedgerDamaged):
        file.append(some(2, 20), [Begun(1, "twice", 0, 0)], at(40, 22))
    with pytest.raises(InvariantBroken):
        file.append(some(2, 20), [], at(30, 22))
    with pytest.raises(InvariantBroken):
        file.append(some(2, 19), [], at(40, 21))
    assert (file.progress(), len(list(file.rows()))) == (before, 20)
    file.append(some(2, 20), [Begun(2, "r2", 31, 9)], at(40, 22))
    assert file.progress() == Published(at(40, 22), 22)
    file.close()


def test_what_a_crash_leaves_is_the_ledger_up_to_some_transaction(tmp_path: Path) -> None:
    """Goal: a torn file is an older ledger or is made anew, and never wrong. Method: the write-ahead log cut at many
    places, and with a bit turned."""
    file = LedgerFile(tmp_path / FILE, TOPIC)
    whole = some(40)
    for n in range(0, 40, 4):
        file.append(whole[n : n + 4], [], at(10 + n, n + 4))
    main, wal = ((tmp_path / f"{FILE}{suffix}").read_bytes() for suffix in ("", "-wal"))
    file.close()
    chance = random.Random(7)
    lengths = set()
    for cut in [*range(0, len(wal), 3_989), len(wal)]:
        for turned in (False, True):
            folder = tmp_path / f"{cut}-{turned}"
            folder.mkdir()
            left = bytearray(wal[:cut])
            if turned and left:
                left[chance.randrange(len(left))] ^= 1 << chance.randrange(8)
            (folder / FILE).write_bytes(main)
            (folder / f"{FILE}-wal").write_bytes(bytes(left))
            after = open_or_make_anew(folder, TOPIC)
            rows, progress = list(after.rows()), after.progress()
            assert rows == whole[: len(rows)]
            assert progress.ledger_end == len(rows)
            assert progress.position == (at(10 + len(rows) - 4, len(rows)) if rows else None)
            lengths.add(len(rows))
            after.close()
    assert {0, 40} < lengths <= set(range(0, 41, 4))


@pytest.mark.parametrize(
    "damage", ["empty", "garbage", "text", "cut", "other log", "other version", "no rows", "a row more"]
)
def test_a_file_that_is_not_ours_is_put_aside(tmp_path: Path, damage: str) -> None:
    """Goal: a damaged ledger is made anew by itself. Method: every kind of wrong file; then it is filled again."""
    path = fill(tmp_path)
    if damage in ("empty", "garbage", "cut"):
        raw = path.read_bytes()
        path.write_bytes(
            {"empty": b"", "garbage": random.Random(1).randbytes(9_000), "cut": raw[: len(raw) // 2]}[damage]
        )
    elif damage == "text":
        path.write_text("not a database\n" * 1_000)
    else:
        statement = {
            "other log": "UPDATE progress SET topic_id = 'topic-2'",
            "other version": "PRAGMA user_version = 2",
            "no rows": "DELETE FROM completion",
            "a row more": "INSERT INTO completion VALUES (21, 40, 0, x'00', 0)",
        }[damage]
        connection = sqlite3.connect(path)
        connection.execute(statement)
        connection.commit()
        connection.close()
    file = open_or_make_anew(tmp_path, TOPIC)
    assert file.progress().position is None
    file.append(some(20), [], at(30, 20))
    file.close()
    assert path.with_name(f"{FILE}.damaged").exists() == (damage != "empty")


async def test_a_turned_bit_is_never_an_answer(tmp_path: Path) -> None:
    """Goal: a disk that lies is found when the row is read. Method: turn bits all over the file, read all."""
    raw = fill(tmp_path, 200).read_bytes()
    right = some(200)
    chance, found = random.Random(3), 0
    for round_number in range(60):
        folder = tmp_path / str(round_number)
        folder.mkdir()
        damaged = bytearray(raw)
        damaged[chance.randrange(len(raw))] ^= 1 << chance.randrange(8)
        (folder / FILE).write_bytes(damaged)
        reader = SqliteReader(folder / FILE)
        try:
            assert list(await reader.read(0, 200)) == right
        except StoreUnavailable:
            found += 1
        await reader.close()
    assert 10 < found < 60  # the rest is free space


async def test_a_file_that_somebody_holds_is_waited_for_and_then_refused(tmp_path: Path) -> None:
    """Goal: a locked file is not damage. Method: hold it by another writer beyond the wait."""
    path = fill(tmp_path)
    file = LedgerFile(path, TOPIC)
    file._connection.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable):
        file.append(some(1, 20), [], at(31, 21))
    other.execute("ROLLBACK")
    file.append(some(1, 20), [], at(31, 21))
    other.close()
    file.close()


async def test_readers_cannot_write_and_find_a_new_file(tmp_path: Path) -> None:
    """Goal: a ledger that was made anew is read. Method: read, put aside, make anew, read; try to write as a reader."""
    path = fill(tmp_path)
    reader = SqliteReader(path)
    assert len(await reader.read(0, 20)) == 20
    assert reader._connection is not None
    with pytest.raises(sqlite3.OperationalError):
        reader._connection.execute("DELETE FROM completion")
    await reader.reset()
    path.unlink()
    with pytest.raises(StoreUnavailable):
        await reader.read(0, 20)
    fill(tmp_path, 5)
    assert len(await reader.read(0, 5)) == 5
    await reader.close()


async def test_it_is_fed_from_below_and_straddling_its_position(tmp_path: Path) -> None:
    """Goal: an index that is made anew feeds the ledger again, and nothing is there twice. Method: random runs over a
    log, begun anew at random places below the ledger's end; compared with one ledger fed once."""
    whole = some(60)
    chance = random.Random(5)
    async with running(open_or_make_anew(tmp_path, TOPIC)) as ledger:
        reached = BEGIN
        while reached < 70:
            offset = chance.randrange(-1, reached + 1)
            for _ in range(chance.randrange(1, 6)):
                upper = min(70, offset + chance.randrange(1, 15))
                if upper <= offset:
                    break
                new = [row for row in whole if offset < row[1].log_offset <= upper]
                ledger.feed(new, [], offset, at(upper, max(0, min(60, upper - 9))))
                offset = upper
            reached = max(reached, offset)
            if chance.random() < 0.3:
                await ledger.reached(reached)
        await ledger.reached(70)
        assert list(ledger._file.rows()) == whole


async def test_another_record_at_its_position_stops_it(ledger: EmbeddedLedger) -> None:
    """Goal: a ledger of another history is never continued. Method: feed the same offset with another digest."""
    ledger.feed(some(3), [], BEGIN, at(20, 3))
    with pytest.raises(InvariantBroken):
        ledger.feed(some(3), [], BEGIN, msgspec.structs.replace(at(20, 3), digest=b"e" * 32))


async def test_a_run_that_leaves_a_gap_is_refused(tmp_path: Path) -> None:
    """Goal: no completion is ever missing between two others. Method: a run that begins one record too high, over an
    empty ledger, over what waits, and over what is written; then the run that was missing."""
    async with running(open_or_make_anew(tmp_path, TOPIC)) as ledger:
        for gap, run, covered in ((0, 0, 19), (20, 10, 29), (30, 20, 39)):
            before = ledger.fed_offset
            with pytest.raises(InvariantBroken, match=r"INTERNAL: .* begins after offset"):
                ledger.feed([], [], gap, at(covered))
            assert ledger.fed_offset == before
            ledger.feed(some(10, run), [], before, at(covered, run + 10))
            if covered == 29:
                await ledger.reached(29)
        assert (await ledger.reached(39)).ledger_end == 30


@pytest.mark.parametrize("end", ["damage", "cancelled", "stopped", "pruning finds damage"])
async def test_nobody_waits_for_a_ledger_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Goal: who waits for a ledger learns that it has ended, and why. Method: wait for room and for an offset, end it
    in each way; ask again, and feed it, once it has ended."""
    monkeypatch.setattr("replica.store.sqlite.ledger._WAITING_MAX", 0)
    file = open_or_make_anew(tmp_path, TOPIC)
    file.append(some(5), [Begun(1, "r1", 0, 0)], at(15, 5))
    ledger = EmbeddedLedger(file)
    task = asyncio.create_task(ledger.run())
    waiting = [asyncio.create_task(one) for one in (ledger.room(), ledger.reached(99))]
    await asyncio.sleep(0)
    expected: type[Exception] = LedgerDamaged
    if end == "damage":
        ledger.feed([], [Begun(1, "twice", 16, 0)], 15, at(16, 5))
    elif end == "pruning finds damage":
        file._connection.execute("UPDATE completion SET checksum = checksum + 1")
        with pytest.raises(StoreUnavailable):
            await ledger.prune(None, 9)
    else:
        expected = StoreUnavailable
        await ledger.stop() if end == "stopped" else task.cancel()
    async with asyncio.timeout(5):
        ended = await asyncio.gather(task, *waiting, return_exceptions=True)
        if end == "stopped":
            assert ended[0] is None
        else:
            assert isinstance(ended[0], asyncio.CancelledError if end == "cancelled" else LedgerDamaged)
        assert [type(one) for one in ended[1:]] == [expected, expected]
        for wait in (ledger.room, lambda: ledger.reached(99)):
            with pytest.raises(expected):
                await wait()
    with pytest.raises(expected):
        ledger.feed([], [], 15, at(17, 5))
    await ledger.stop()


async def test_the_follower_waits_where_the_disk_does_not_keep_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: memory is bounded. Method: a bound of ten; feed without a writer, then with one."""
    monkeypatch.setattr("replica.store.sqlite.ledger._WAITING_MAX", 10)
    ledger = EmbeddedLedger(open_or_make_anew(tmp_path, TOPIC))
    ledger.feed(some(12), [], BEGIN, at(30, 12))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await ledger.room()
    task = asyncio.create_task(ledger.run())
    await ledger.room()
    await ledger.stop()
    await task


async def test_a_ledger_that_is_further_than_what_is_published_counts_nothing_twice(ledger: EmbeddedLedger) -> None:
    """Goal: pruning asks how far the ledger is while runs wait to be published; each keeps its ledger offset. Method:
    feed two runs, publish the first, ask as pruning does, publish the second."""
    store = EmbeddedStore(ledger, TOPIC, RAISED)
    assert (await store.published()).ledger_end == 0
    ledger.feed(some(2), [], BEGIN, at(11, 2))
    ledger.feed(some(3, 2), [], 11, at(20, 5))
    assert await store.publish(some(2), at(11, 2)) == 0
    assert (await ledger.reached(20)).ledger_end == 5
    await store.published()
    assert await store.publish(some(3, 2), at(20, 5)) == 0


async def test_a_store_that_lacks_completions_is_refused(ledger: EmbeddedLedger) -> None:
    """Goal: nothing passes for published that the ledger has not. Method: publish what was not fed."""
    store = EmbeddedStore(ledger, TOPIC, RAISED)
    with pytest.raises(StoreMismatch):
        await store.bind("topic-2")
    await store.published()
    ledger.feed(some(3), [], BEGIN, at(20, 3))
    assert await store.publish(some(3), at(20, 3)) == 0
    with pytest.raises(InvariantBroken):
        await store.publish(some(1, 3), at(20, 4))


async def test_rows_go_after_front_ends_have_heard_and_those_that_were_left_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a reader below a new bound meets the bound, not missing rows; nothing is left for good. Method: prune, and
    end before the rows go; start again; prune more."""

    def least(path: Path) -> int:
        with closing(sqlite3.connect(path)) as connection:
            return int(connection.execute("SELECT min(ledger_offset) FROM completion").fetchone()[0])

    path = fill(tmp_path)
    async with running(open_or_make_anew(tmp_path, TOPIC)) as ledger:
        assert (await ledger.prune(5, 10**9)).pruned_to == 5
        assert least(path) == 1
    monkeypatch.setattr("replica.store.sqlite.ledger._HEARD_S", 0.01)

    async def begins_with(offset: int) -> bool:
        return least(path) == offset

    async with running(open_or_make_anew(tmp_path, TOPIC)) as ledger:
        await eventually(lambda: begins_with(6))
        assert (await ledger.prune(9, 10**9)).pruned_to == 9
        await eventually(lambda: begins_with(10))
