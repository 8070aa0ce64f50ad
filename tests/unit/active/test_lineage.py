"""Two primaries of one database: the log shows which of them may lead, and a denial never rests on one of them."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from ha.lock.interface import DatabaseIdentity
from replica.active.lineage import Descent, agree_with_log, check_descent, descent
from replica.log.memory import MemoryLog, MemoryReader, MemoryTopic
from replica.notary.answers import Notarised, Refused, StateStatus
from replica.notary.codes import Code
from replica.notary.counted import CountedRequest
from replica.notary.errors import DatabaseSuperseded
from replica.notary.granters import Claim, Database, Granter, Pause
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.records import BarrierRecord, encode_record
from replica.store.memory import MemoryStore
from tests.next_version.release import LOTS, NEXT, PRESENT, registered
from tests.simulation.virtual import run_virtually
from tests.virtual_time import on_virtual_time
from tests.worlds import core_world
from tests.worlds.core_world import BEGUN, World, name_of, state, submission

OURS = DatabaseIdentity("postgres", "7301", 3)


def barrier(granter: Granter, epoch: int = 7) -> BarrierRecord:
    return BarrierRecord(epoch, b"z" * 16, "R9", granter, 2, 3)


@pytest.mark.parametrize(
    ("in_force", "found"),
    [
        ("", Descent.UNKNOWN),
        ("elsewhere", Descent.UNKNOWN),
        ("postgres:7301", Descent.UNKNOWN),
        ("postgres:7301:x", Descent.UNKNOWN),
        ("postgres:7301:2", Descent.CONTINUES),
        ("postgres:7301:3", Descent.CONTINUES),
        ("postgres:7301:4", Descent.SUPERSEDED),
        ("postgres:7301:10", Descent.SUPERSEDED),
        ("postgres:7302:4", Descent.ANOTHER),
        ("oracle:7301:4", Descent.ANOTHER),
        ("lease", Descent.UNKNOWN),
    ],
)
def test_a_barrier_tells_whether_our_database_goes_on_from_its(in_force: str, found: Descent) -> None:
    """Goal: a lower timeline of the same system, and nothing else, was succeeded. Method: each case."""
    assert descent(OURS, in_force) is found


def test_only_a_database_that_was_succeeded_is_refused() -> None:
    """Goal: the refusal names both, and what to do. Method: no barrier at all, a claim to a
    lease, another system, and a newer timeline, also where service is paused."""
    check_descent(OURS, None)
    check_descent(OURS, barrier(Claim(9)))
    check_descent(OURS, barrier(Database("postgres", "7302", 9)))
    check_descent(OURS, barrier(Pause("postgres", "7301", 3, "R1")))
    for granter in (Database("postgres", "7301", 4), Pause("postgres", "7301", 4, "R1")):
        with pytest.raises(DatabaseSuperseded, match=r"timeline 3.*timeline 4") as caught:
            check_descent(OURS, barrier(granter))
        assert caught.value.code is Code.DATABASE_SUPERSEDED
        assert "database-failover" in caught.value.code.remedy


@on_virtual_time
async def test_a_replica_on_an_old_primary_writes_nothing_and_tries_again() -> None:
    """Goal: two live primaries do not depose each other in turn. Method: a barrier of a newer timeline is in the log
    and not applied yet; then the old primary is replaced."""
    async with World() as world:
        world.shared.topic.store(encode_record(barrier(Database("memory", "memory", 2))))
        replica = await world.replica()
        await asyncio.sleep(30)
        assert not replica.participant.standing().active
        assert (world.shared.topic.end_offset, world.shared.database.epoch) == (BEGUN + 1, 0), "nothing was written"
        world.shared.lock_server.identity = DatabaseIdentity("memory", "memory", 3)
        await replica.until_active()
        assert replica.participant.epoch == 8


@pytest.mark.parametrize("database", [Database("memory", "memory", 2), Database("memory", "elsewhere", 1)])
def test_nothing_is_admitted_under_older_rules_than_were_in_force(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: what newer rules refuse is not accepted by older ones, which do not look at it. Method: an activation has
    read the log and has its epoch; then the barrier of another primary comes into force under the next rules, and after
    it our own under today's. It admits nothing; the next one on this primary writes the next ones."""
    raise_epoch = MemoryStore.raise_epoch

    async def story() -> list[int]:
        async with World() as world:
            topic, shared = world.shared.topic, world.shared
            shared.database.epoch = 10

            async def overtaken(store: MemoryStore, above: int, replica: str) -> int:
                epoch = await raise_epoch(store, above, replica)
                if topic.end_offset == BEGUN:
                    topic.store(encode_record(BarrierRecord(5, b"z" * 16, "R9", database, NEXT.records, NEXT.rules)))
                return epoch

            monkeypatch.setattr(MemoryStore, "raise_epoch", overtaken)
            replica = await world.replica()
            await replica.until_active()
            answers = await replica.submit(*[submission(n, [state(n)], submission_id=f"{n}") for n in range(8 * LOTS)])
            refused = {answer.code for answer in answers if isinstance(answer, Refused)}
            assert refused == {Code.TIME_WINDOW_CLOSED.name}
            reading = read_records(begin("memory-1"), topic.records(0, 1_000))
            requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
            assert {entry.rules_version for entry in requests} == {NEXT.rules}
            return [found.record.rules_version for found in reading.barriers]

    with registered():
        assert run_virtually(story()) == [PRESENT.rules, NEXT.rules, PRESENT.rules, NEXT.rules]


class LogInMemoryDatabase(MemoryLog):
    """A log that lies in a database, and what was required of it."""

    database: str | None = "memory:memory:1"
    required: ClassVar[set[str]] = set()

    def require_database(self, named: str) -> None:
        self.required.add(named)


def test_a_lock_on_an_older_primary_than_the_log_is_refused() -> None:
    """Goal: epochs and completions are never written to a primary that was succeeded. Method: a log without a server
    so far, on another system, on ours, on an earlier timeline, which is told to leave, and on a later one."""
    log = LogInMemoryDatabase(MemoryTopic())
    for database in (None, "postgres:9999:9", "postgres:7301:3", "postgres:7301:2"):
        log.database = database
        agree_with_log(OURS, log)
    assert "postgres:7301:3" in log.required
    log.database = "postgres:7301:4"
    with pytest.raises(DatabaseSuperseded, match=r"7301:3.*later primary.*7301:4"):
        agree_with_log(OURS, log)
    agree_with_log(OURS, MemoryLog(MemoryTopic()))  # in no database


@on_virtual_time
async def test_a_replica_whose_log_is_on_a_later_primary_than_its_lock_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: lock, reader and writer agree before anything is written. Method: the log has found the new primary, the
    lock the old one; then the lock finds it as well."""
    async with World() as world:
        monkeypatch.setattr(core_world, "MemoryLog", LogInMemoryDatabase)
        monkeypatch.setattr(LogInMemoryDatabase, "database", "memory:memory:2")
        replica = await world.replica()
        await asyncio.sleep(30)
        assert not replica.participant.standing().active
        assert (world.shared.topic.end_offset, world.shared.database.epoch) == (BEGUN, 0), "nothing was written"
        world.shared.lock_server.identity = DatabaseIdentity("memory", "memory", 2)
        await replica.until_active()
        assert "memory:memory:2" in LogInMemoryDatabase.required


@pytest.mark.parametrize("of_a_state", [False, True])
@on_virtual_time
async def test_not_found_is_said_only_by_who_has_read_to_an_end_that_was_asked_for_later(
    of_a_state: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: an active on an old primary, whose lock answers, cannot deny what the new one notarised. Method: what is in
    the log and not read yet, because reading is slow, is looked up."""

    wait = MemoryReader._wait

    async def slowly(self: MemoryReader, wait_s: float) -> None:
        await wait(self, wait_s)
        await asyncio.sleep(0.3)

    async with World() as world:
        replica = await world.replica()
        await replica.until_active()
        monkeypatch.setattr(MemoryReader, "_wait", slowly)
        await asyncio.sleep(1)  # the reader is in its slow ways
        end = world.shared.topic.end_offset
        asked = asyncio.create_task(replica.submit(submission(4, [state(1)])))
        while world.shared.topic.end_offset == end:
            await asyncio.sleep(0.001)
        assert replica.participant.follower.applied_offset == end - 1
        if of_a_state:
            told = await replica.link.look_up_state(state(1))
            assert isinstance(told, StateStatus)
            assert told.consumed_by == name_of(4)
        else:
            assert isinstance(await replica.link.look_up(name_of(4)), Notarised)
        await asked
        missing = await replica.link.look_up(name_of(5))
        assert isinstance(missing, Refused)
        assert missing.code == Code.TX_NOT_FOUND.name
