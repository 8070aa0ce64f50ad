"""The participant store on Oracle, against the double: the contract, its round trips, and each way a write can fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest

from ha.clock import SystemClock
from ha.errors import LockLost
from ha.lock.ids import Counter, lock_id
from ha.lock.oracle import OracleLockSession
from ha.settings import ElectionSettings
from replica.database import Login, participant_database
from replica.notary.codes import Code
from replica.notary.errors import InvariantBroken, LogRefused, StoreMismatch, StoreUnavailable
from replica.notary.formats import Formats
from replica.notary.marks import ContradictedMarks
from replica.notary.position import Position, decode_position
from replica.store.archive_head import ArchiveHead, ArchiveHeads
from replica.store.open import adopt_topic, export_range, open_reader, published_state
from replica.store.oracle import prune
from replica.store.oracle.board import oracle_board
from replica.store.oracle.export import export_completions
from replica.store.oracle.login import render_oracle
from replica.store.oracle.migrate import migrate, newest_version, statements_of
from replica.store.oracle.status import read_status
from replica.store.oracle.store import OracleStore
from replica.store.reader import CompletionReader
from replica.store.schema import LOCK_WAIT_S, Migration, read_migrations
from tests.contracts.reader_contract import ReaderContract, publish_over_time
from tests.contracts.side_by_side import played
from tests.contracts.store_contract import (
    REJECTED,
    TOPIC,
    ContradictedMarksContract,
    Ends,
    NewStore,
    StoreContract,
    activated,
    at,
    command,
    completion,
    ends_on,
    publish,
)
from tests.contracts.store_machine import StoreMachine, StoreWorld, memory_world
from tests.oracle import driver
from tests.oracle.server import CONTACT_LOST, ENDED, KILLED, NO_TABLE, OracleServer
from tests.oracle.tables import open_tables

LOGIN = {"user": "notary", "password": "secret", "dsn": "db-1:1521/notary"}
LOCK = 536870912
CLOCK = SystemClock()


@pytest.fixture
def bare_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OracleServer]:
    """A database without our schema."""
    made = OracleServer(CLOCK, tmp_path)
    driver.install(monkeypatch, made)
    yield made
    assert made.breaks == 0, "a statement was cancelled"


@pytest.fixture
async def server(bare_server: OracleServer) -> OracleServer:
    await migrate(LOGIN, LOCK)
    bare_server.calls.clear()
    return bare_server


@pytest.fixture
async def opened() -> AsyncIterator[list[OracleLockSession]]:
    made: list[OracleLockSession] = []
    yield made
    for session in made:
        await session.close()


@pytest.fixture
def new_store(server: OracleServer, opened: list[OracleLockSession]) -> NewStore:
    async def make() -> OracleStore:
        session = OracleLockSession(LOGIN, scope="NOTARY", name="r1", settings=ElectionSettings(), clock=CLOCK)
        await session.open()
        opened.append(session)
        return OracleStore(session)

    return make


def rows(server: OracleServer, query: str) -> list[tuple[object, ...]]:
    tables = open_tables(server._path)
    try:
        return list(tables.execute(query).fetchall())
    finally:
        tables.close()


def names(server: OracleServer) -> list[str]:
    """What was called since `calls` was cleared; a star for what committed."""
    return [call.name + ("*" if call.commit else "") for call in server.calls]


@pytest.fixture
def ends(server: OracleServer) -> Ends:
    async def read() -> dict[int, tuple[str | None, str | None]]:
        async with oracle_board(LOGIN, "test") as board:
            return await ends_on(board)

    return read


class TestOracleStore(StoreContract):
    """See StoreContract."""


def test_it_answers_as_the_double_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: see StoreMachine. Method: random calls."""
    numbers = count()

    @asynccontextmanager
    async def world() -> AsyncIterator[StoreWorld]:
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        server = OracleServer(CLOCK, folder)
        driver.install(monkeypatch, server)
        await migrate(LOGIN, LOCK)
        async with AsyncExitStack() as opened, oracle_board(LOGIN, "test") as board:

            async def new_store() -> OracleStore:
                session = OracleLockSession(LOGIN, scope="NOTARY", name="r1", settings=ElectionSettings(), clock=CLOCK)
                await session.open()
                opened.push_async_callback(session.close)
                return OracleStore(session)

            reader = open_reader(render_oracle(LOGIN))
            opened.push_async_callback(reader.close)
            yield StoreWorld(new_store, reader, ends=partial(ends_on, board), shared=board)
        assert server.breaks == 0, "a statement was cancelled"

    played(partial(StoreMachine, memory_world, world), examples=15, steps=30)


@pytest.fixture
async def shared(server: OracleServer) -> AsyncIterator[ContradictedMarks]:
    async with oracle_board(LOGIN, "test") as board:
        yield board


class TestContradictedMarks(ContradictedMarksContract):
    """See ContradictedMarksContract."""


@pytest.fixture
async def reader(server: OracleServer) -> AsyncIterator[CompletionReader]:
    made = open_reader(render_oracle(LOGIN))
    yield made
    await made.close()


class TestOracleReader(ReaderContract):
    """See ReaderContract."""


async def test_a_page_of_large_conflicts_is_bounded_in_bytes(new_store: NewStore, reader: CompletionReader) -> None:
    """Goal: no page fills the memory. Method: details of 1 MB and of nothing, read page by page."""
    store = await activated(new_store)
    details = [b"x" * 1_000_000] * 6 + [b""] * 600
    done = [completion(command(n), n, REJECTED, detail=detail) for n, detail in enumerate(details)]
    await publish(store, done, len(done))
    sizes, after = [], 0
    while after < len(details):
        page = await reader.read(after, len(details))
        sizes.append(len(page))
        after = page[-1][0]
    assert sizes == [4, 500, 102]


async def test_a_reader_comes_back_after_its_server_ended_it(
    new_store: NewStore, reader: CompletionReader, server: OracleServer
) -> None:
    """Goal: a connection that ended while nobody read costs no caller an error. Method: kill it, read."""
    store = await activated(new_store)
    await publish(store, [completion(command(1), 7)], 7)
    assert len(await reader.read(0, 1)) == 1
    server.end(server.sessions[-1], KILLED)
    assert len(await reader.read(0, 1)) == 1


async def test_a_reader_of_its_own_reads_the_participant_s_tables(
    server: OracleServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: who reads needs no right to write. Method: another user, led to the schema; what it logs in as."""
    asked = driver.install(monkeypatch, server)
    database = participant_database(render_oracle(LOGIN), "NOTARY", reader=Login("feed", "p@ss"))
    reader = open_reader(database.reader_address)
    assert await reader.first_at(0, 0) == 1
    assert asked[-1] == {"user": "feed", "password": "p@ss", "dsn": LOGIN["dsn"], "tcp_connect_timeout": 3.0}
    connection = reader._connection  # type: ignore[attr-defined]
    assert connection.current_schema == "NOTARY"
    await reader.close()


# ---- what tools ask ----


async def test_an_archive_s_head_only_moves_forward(server: OracleServer) -> None:
    """Goal: a late or repeated head changes nothing. Method: record newer, older and the same."""
    heads = ArchiveHeads(render_oracle(LOGIN))
    assert heads.newest("a") is None
    first, second = ArchiveHead(1, "aa", 9), ArchiveHead(2, "bb", 19)
    for head, newest in [(first, first), (second, second), (first, second), (second, second)]:
        heads.record("a", head)
        assert heads.newest("a") == newest
    assert heads.newest("b") is None


async def test_a_restored_topic_is_adopted_while_nobody_is_active(
    new_store: NewStore, server: OracleServer, opened: list[OracleLockSession]
) -> None:
    """Goal: the position goes with the topic, and not under an active replica. Method: held lock, refused, adopted."""
    store = await activated(new_store)
    await publish(store, [completion(command(1), 7)], 7)
    number, seen = lock_id("NOTARY", Counter.PARTICIPANT_WRITE), []
    await opened[-1].try_lock()
    with pytest.raises(StoreMismatch, match="a replica is active") as refused:
        adopt_topic(render_oracle(LOGIN), number, "other", seen.append)
    assert refused.value.code is Code.NOT_POSSIBLE_NOW  # the database is the right one
    await opened[-1].close()

    def refuse(position: Position) -> None:
        raise LogRefused("not there")

    with pytest.raises(LogRefused):
        adopt_topic(render_oracle(LOGIN), number, "other", refuse)
    assert (await read_status(LOGIN)).topic_id == TOPIC
    adopted = adopt_topic(render_oracle(LOGIN), number, "other", seen.append)
    assert adopted == msgspec.structs.replace(at(7, 1), topic_id="other")
    assert seen == [adopted]
    state = published_state(render_oracle(LOGIN))
    assert (state.topic_id, state.ledger_end) == ("other", 1)
    assert state.position is not None
    assert decode_position(state.position) == adopted
    assert [offset for offset, _ in export_range(render_oracle(LOGIN), 0, 1)] == [1]


# ---- what is sent ----


async def test_every_field_is_stored_as_it_was(new_store: NewStore, server: OracleServer) -> None:
    """Goal: the table has what the log has. Method: awkward texts and bytes, read back by the export."""
    store = await activated(new_store)
    names_of_sixteen = tuple(f"CN={number:03}{'é' * 250}" for number in range(16))
    of = msgspec.structs.replace(command(1), user_id='é{}",\\ NULL', submission_id="NULL", act_as=names_of_sixteen)
    done = [
        completion(of, 7, REJECTED, recorded_us=2**62, detail=bytes(range(256))),
        completion(command(2), 8, detail=b""),
    ]
    await publish(store, done, 8)
    with export_completions(LOGIN) as export:
        assert list(export.rows) == [(1, done[0]), (2, done[1])]
        assert (export.topic_id, export.published_offset, export.ledger_end) == (TOPIC, 8, 2)


async def test_each_transaction_is_one_commit_in_a_bounded_number_of_round_trips(
    new_store: NewStore, server: OracleServer
) -> None:
    """Goal: the boundaries are those on Postgres, whatever the size of a batch. Method: the calls of each method."""
    store = await new_store()
    server.calls.clear()
    await store.bind(TOPIC)
    assert names(server) == ["bind_topic*", "bound"]
    server.calls.clear()
    await store.raise_epoch(0, "r")
    assert names(server) == ["counters", "found_over", "grant_epoch", "raise_epoch*"]
    server.calls.clear()
    await store.published()
    assert names(server) == ["published"]
    for size in (1, 300):
        batch = [command(1_000 * size + number) for number in range(size)]
        server.calls.clear()
        await publish(store, [completion(of, size) for of in batch], size, size // 300)
        assert names(server) == ["counters", "complete", "move_position*"]
        assert [len(call.rows) for call in server.calls] == [1, size, 1]
    server.calls.clear()
    await publish(store, [], 500, 301)
    await publish(store, [completion(command(1), 501, REJECTED)], 501, 301)
    assert names(server) == [
        *("counters", "move_position*"),
        *("counters", "complete", "move_position*"),
    ]


async def test_what_is_below_the_bound_is_deleted_and_nothing_else(
    new_store: NewStore, server: OracleServer, reader: CompletionReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: deleting is house-keeping below a bound that is there already. Method: chunks, twice; what is left."""
    monkeypatch.setattr(prune, "CHUNK_ROWS", 2)
    store = await publish_over_time(new_store)
    database = participant_database(render_oracle(LOGIN), "NOTARY")
    told: list[int] = []
    assert await database.delete_pruned(told.append) == 0
    await store.prune(5, 10**9)
    server.calls.clear()
    assert await database.delete_pruned(told.append) == 5
    assert names(server) == [*["oldest_kept", "delete_completions"] * 3, "oldest_kept"]
    assert await database.delete_pruned(told.append) == 0
    assert told == [2, 4, 5]
    assert rows(server, "SELECT MIN(ledger_offset), COUNT(*) FROM completion") == [(6, 5)]
    assert await reader.first_at(3, 10) == 6
    with export_completions(LOGIN) as export:
        assert (export.pruned_to, [offset for offset, _ in export.rows]) == (5, [6, 7, 8, 9, 10])


STATEMENTS = ["counters", "complete", "move_position"]


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("failure", [KILLED, ENDED, CONTACT_LOST], ids=lambda f: f"ORA-{f[0]:05}")
async def test_a_publication_on_a_session_that_ends_is_whole_or_nothing(
    new_store: NewStore, server: OracleServer, name: str, failure: tuple[int, str]
) -> None:
    """Goal: no half of a publication, and its outcome is reported as unknown. Method: each death at each statement."""
    store = await activated(new_store)
    server.failures[name] = [failure]
    with pytest.raises(LockLost, match=f"ORA-{failure[0]:05}"):
        await publish(store, [completion(command(1), 7)], 7)
    assert rows(server, "SELECT ledger_end, published_offset FROM participant") == [(0, -1)]
    assert rows(server, "SELECT count(*) FROM completion") == [(0,)]


FULL = (1653, "unable to extend table NOTARY.COMPLETION by 128 in tablespace USERS")
READ_ONLY = (16000, "database or pluggable database open for read-only access")
DEADLOCK = (60, "deadlock detected while waiting for resource")
RIGHTS = (1031, "insufficient privileges")
TAKEN = (1, "unique constraint (NOTARY.COMPLETION_PK) violated")


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (FULL, StoreUnavailable),
        (READ_ONLY, StoreUnavailable),
        (DEADLOCK, StoreUnavailable),
        ((4021, "timeout occurred while waiting to lock object"), StoreUnavailable),
        (NO_TABLE, StoreMismatch),
        (RIGHTS, StoreMismatch),
        (TAKEN, InvariantBroken),
    ],
    ids=lambda value: f"ORA-{value[0]:05}" if isinstance(value, tuple) else value.__name__,
)
async def test_an_error_in_a_transaction_undoes_it_and_keeps_the_session(
    new_store: NewStore, server: OracleServer, failure: tuple[int, str], error: type[Exception]
) -> None:
    """Goal: a definite answer costs nothing but itself. Method: each kind of error behind a write, then again."""
    store = await activated(new_store)
    server.failures["move_position"] = [failure]
    with pytest.raises(error, match=f"ORA-{failure[0]:05}"):
        await publish(store, [completion(command(1), 7)], 7)
    assert rows(server, "SELECT count(*) FROM completion") == [(0,)]
    assert await publish(store, [completion(command(1), 7)], 7) == 0


async def test_a_write_that_nobody_waits_for_any_more_reaches_its_end(
    new_store: NewStore, server: OracleServer, opened: list[OracleLockSession]
) -> None:
    """Goal: a write is never cancelled; its session is closed. Method: no answer; the user's task is cancelled."""
    store = await activated(new_store)
    server.stalled.add("move_position")
    task = asyncio.create_task(publish(store, [completion(command(1), 7)], 7))
    while not server.named("move_position"):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert opened[-1].closed
    assert server.session_of("r1").ended is not None
    assert (await (await activated(new_store)).published()).ledger_end == 1


async def test_a_character_set_that_loses_texts_is_refused(new_store: NewStore, server: OracleServer) -> None:
    """Goal: a party's name is stored as it is. Method: a database in a Western European character set."""
    tables = open_tables(server._path)
    tables.execute("UPDATE nls_database_parameters SET value = 'WE8MSWIN1252'")
    with pytest.raises(StoreMismatch, match="WE8MSWIN1252"):
        await (await new_store()).bind(TOPIC)


# ---- schema and status ----


async def test_a_database_without_a_schema_says_what_to_do(bare_server: OracleServer) -> None:
    """Goal: a forgotten migration is named. Method: bind to, ask the status of, and export an empty database."""
    session = OracleLockSession(LOGIN, scope="NOTARY", name="r1", settings=ElectionSettings(), clock=CLOCK)
    await session.open()
    with pytest.raises(StoreMismatch, match="notary store migrate"):
        await OracleStore(session).bind(TOPIC)
    await session.close()
    with pytest.raises(StoreMismatch, match="notary store migrate"):
        await read_status(LOGIN)
    with pytest.raises(StoreMismatch), export_completions(LOGIN):
        pass


async def test_status_tells_people_where_things_are(new_store: NewStore) -> None:
    """Goal: one look shows who leads and how far. Method: an activation, one completion."""
    store = await activated(new_store)
    await publish(store, [completion(command(1), 7)], 7)
    status = await read_status(LOGIN)
    assert (status.topic_id, status.epoch, status.replica) == (TOPIC, 1, "r")
    assert (status.published_offset, status.ledger_end) == (7, 1)
    assert status.schema_version == newest_version()
    assert status.granted_at is not None
    assert status.granted_at.tzinfo is not None


async def test_migrations_are_applied_once_and_under_their_lock(bare_server: OracleServer) -> None:
    """Goal: replicas may all migrate. Method: once, again, and while another session holds the lock."""
    assert await migrate(LOGIN, LOCK) == [m.name for m in read_migrations("oracle")]
    assert await migrate(LOGIN, LOCK) == []
    (call, _) = bare_server.named("migration_lock")
    assert call.rows == [{"id": LOCK, "seconds": LOCK_WAIT_S}]
    bare_server.locks[LOCK] = bare_server.connect()
    with pytest.raises(StoreUnavailable, match="another migration"):
        await migrate(LOGIN, LOCK)


@pytest.mark.parametrize("noted", [False, True])
@pytest.mark.parametrize("cut", range(1, 12))
async def test_a_migration_that_is_cut_goes_on_where_it_was(
    bare_server: OracleServer, monkeypatch: pytest.MonkeyPatch, cut: int, noted: bool
) -> None:
    """Goal: a change of a schema cannot be undone, so it can be continued. Method: die at and behind each statement."""
    texts = statements_of(read_migrations("oracle")[0])
    assert len(texts) == 11
    done = bare_server.carry_out
    steps = 0

    def dying(session: object, text: str, *rest: object) -> object:
        nonlocal steps
        step = text == texts[cut - 1] if not noted else text.startswith("UPDATE schema_version SET statements_done")
        steps += step
        answer = done(session, text, *rest)  # type: ignore[arg-type]
        if step and (not noted or steps == cut):
            bare_server.end(session)  # type: ignore[arg-type]
        return answer

    monkeypatch.setattr(bare_server, "carry_out", dying)
    with pytest.raises(StoreUnavailable):
        await migrate(LOGIN, LOCK)
    monkeypatch.undo()
    driver.install(monkeypatch, bare_server)
    session = OracleLockSession(LOGIN, scope="NOTARY", name="r1", settings=ElectionSettings(), clock=CLOCK)
    await session.open()
    with pytest.raises(StoreMismatch, match="notary store migrate"):
        await OracleStore(session).bind(TOPIC)
    await session.close()
    assert await migrate(LOGIN, LOCK) == [m.name for m in read_migrations("oracle")]
    assert rows(bare_server, "SELECT count(*) FROM participant") == [(1,)]
    assert (await read_status(LOGIN)).schema_version == newest_version()


async def test_a_table_that_is_not_ours_is_not_taken_over(bare_server: OracleServer) -> None:
    """Goal: only what an interrupted migration made may exist already. Method: a table of the same name before."""
    tables = open_tables(bare_server._path)
    tables.execute("CREATE TABLE participant (somebody TEXT)")
    with pytest.raises(InvariantBroken, match="ORA-00955"):
        await migrate(LOGIN, LOCK)


@pytest.mark.parametrize("usable_from", [1, 999])
async def test_a_newer_schema_is_used_only_if_it_says_so(
    new_store: NewStore, server: OracleServer, usable_from: int
) -> None:
    """Goal: replicas are replaced one by one. Method: a later release's migration that we can, or cannot, live with."""
    tables = open_tables(server._path)
    tables.execute("INSERT INTO schema_version VALUES (999, '0999_later.sql', ?, 1, 'then')", (usable_from,))
    store = await new_store()
    if usable_from == 1:
        await store.bind(TOPIC)
        assert await migrate(LOGIN, LOCK) == []
        return
    with pytest.raises(StoreMismatch, match="999"):
        await store.bind(TOPIC)
    with pytest.raises(StoreMismatch, match="999"):
        await migrate(LOGIN, LOCK)


def test_a_line_with_a_slash_ends_a_statement() -> None:
    """Goal: a block with semicolons stays whole, comments go. Method: a migration of both kinds."""
    text = b"-- usable from version 1\nCREATE TABLE a (n NUMBER)\n/\n-- why\nBEGIN\n    NULL;\nEND;\n/\n"
    assert statements_of(Migration(2, "0002_x.sql", 1, text)) == [
        "CREATE TABLE a (n NUMBER)",
        "BEGIN\n    NULL;\nEND;",
    ]


async def test_what_is_written_is_raised_and_never_lowered(new_store: NewStore) -> None:
    """Goal: two operators at a time go forward. Method: raise each by itself, then lower; what a session receives."""
    async with oracle_board(LOGIN, "test") as board:
        assert await board.formats() == Formats(2, 3)
        assert await board.raise_formats(Formats(2, 4)) == Formats(2, 4)
        assert await board.raise_formats(Formats(3, 3)) == Formats(3, 4)
    assert await (await new_store()).bind(TOPIC) == Formats(3, 4)


async def test_a_pause_is_kept_once_and_ended(new_store: NewStore, server: OracleServer) -> None:
    """Goal: fail-over can be paused on Oracle as on Postgres. Method: nothing to keep, pause twice, resume twice."""
    async with oracle_board(LOGIN, "test") as board:
        assert await board.pause("nobody was active yet") is None
        await activated(new_store)
        first, again = await board.pause("one"), await board.pause("another")
        assert first is not None
        assert again is not None
        assert (first.keeper, again.reason, again.paused_at) == ("r", "another", first.paused_at)
        assert await board.resume() == again
        assert await board.resume() is None
        await board.end_epoch(1, "r", "lost", 5.0)
        assert [activation.end_reason for activation in await board.history(5)] == ["lost (recorded 5.0 s later)"]
