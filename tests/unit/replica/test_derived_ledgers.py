"""Whole cores whose replicas derive ledgers of their own: one log, one ledger in every replica. Real files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from ha.lock.lease import LeaseSession
from replica.active.completions import completions_of
from replica.active.derived_ledger import DerivedLedger
from replica.active.lease_log import FollowedLease
from replica.database import EmbeddedLedgers
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.link.interface import SubmitOptions
from replica.notary.answers import Notarised, Refused
from replica.notary.formats import Formats, of_barrier
from replica.notary.granters import Claim, Release
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.store.interface import Row
from replica.store.sqlite.reader import SqliteReader
from replica.store.sqlite.tables import FILE
from tests.next_version.release import NEXT, PRESENT, registered
from tests.worlds.core_world import Replica, World, state, submission

LIFE_MAX_S = 120.0


async def rows_of(replica: Replica, folder: Path, world: World) -> list[Row]:
    """What the replica's readers find, once it covers the log."""
    assert replica.ledger is not None
    end = (await replica.ledger.reached(world.shared.topic.end_offset - 1)).ledger_end
    reader = SqliteReader(folder / FILE)
    rows = list(await reader.read(0, end))
    await reader.close()
    return rows


async def successor(*replicas: Replica) -> Replica:
    """Whoever leads after the first activation: any of them may take the lock first.

    By the epoch of its own activation: the first one may have read the next barrier and not have stepped down yet.
    """
    while True:
        for one in replicas:
            activation = one.participant.activation
            if one.participant.standing().active and activation is not None and activation.epoch > 1:
                return one
        await asyncio.sleep(0.01)


def decided(world: World) -> list[Row]:
    topic = world.shared.topic
    applied = Applier(MemoryIndex(), topic.topic_id).apply(topic.records(0, topic.end_offset))
    return completions_of(applied)


@pytest.mark.parametrize("damaged", [False, True])
async def test_all_replicas_derive_one_ledger(tmp_path: Path, damaged: bool) -> None:
    """Goal: ledgers are equal in all replicas and have what the log decided, before and after a change of the active,
    and also if the active's file is deleted under it. Method: two replicas with files, one active after the other;
    submit, delete, submit, depose, submit; read both files; the ledger's end in the standing."""
    folders = [tmp_path / "1", tmp_path / "2"]
    async with asyncio.timeout(LIFE_MAX_S), World() as world:
        first = await world.replica(1, folder=folders[0])
        await first.until_active()
        second = await world.replica(2, folder=folders[1])
        for number in range(8):
            (answer,) = await first.submit(submission(number, [state(number // 2)]))
            assert isinstance(answer, Refused if number % 2 else Notarised)
            if damaged and number == 3:
                for part in folders[0].glob(f"{FILE}*"):
                    part.unlink()
        found = [await rows_of(one, folder, world) for one, folder in zip((first, second), folders, strict=True)]
        assert found[0] == found[1] == decided(world)
        assert len(found[0]) == 8
        while first.participant.standing().ledger_end < 8:
            await asyncio.sleep(0.01)

        world.shared.lock_server.end_all()
        leader = await successor(first, second)
        assert leader.participant.standing().ledger_end == 8
        (answer,) = await leader.submit(submission(9, [state(99)]), options=SubmitOptions(deduplication_after=3))
        assert isinstance(answer, Notarised)
        found = [await rows_of(one, folder, world) for one, folder in zip((first, second), folders, strict=True)]
        assert found[0] == found[1] == decided(world)
        assert len(found[0]) == 9
        assert world.shared.database.completions == []
        assert not any(one.participant.broken.done() for one in (first, second))


class LeasedReplica(Replica):
    """A core whose lock is a lease: nothing is shared but the log."""

    async def raised(self) -> Formats:
        """What operators have raised: here the tables of a world stand in for the words in the log."""
        return self.shared.database.formats

    def _session(self) -> Any:
        lease = FollowedLease(self.log, self.participant.follower, os.urandom, self.shared.clock.wall_us, self.raised)
        return LeaseSession(lease, name=self.name, settings=self.shared.election, clock=self.shared.clock)


async def test_replicas_that_share_nothing_but_the_log_are_one_notary(tmp_path: Path) -> None:
    """Goal: no database is needed for lock, completions or history. Method: two replicas over a lease and files of
    their own; submit, stop the active, submit the same and an offence to the other; its file, and its history."""
    folders = [tmp_path / "1", tmp_path / "2"]
    async with asyncio.timeout(LIFE_MAX_S), World() as world:
        first, second = (LeasedReplica(world.shared, f"R{n}", folder=folder) for n, folder in enumerate(folders, 1))
        for replica in (first, second):
            replica.start()
            world.push_async_callback(replica.stop)
            if replica is first:
                await first.until_active()
        answers = await first.submit(*(submission(number, [state(number)]) for number in range(5)))
        assert all(isinstance(answer, Notarised) for answer in answers)
        await first.stop()
        await second.until_active()
        repeated, refused = await second.submit(submission(0, [state(0)]), submission(9, [state(0)]))
        assert isinstance(repeated, Notarised)
        assert repeated.duplicate
        assert isinstance(refused, Refused)
        assert await rows_of(second, folders[1], world) == decided(world)
        async with EmbeddedLedgers([folders[1] / FILE]).board("test") as board:
            newest, before, _ = await board.history(10)
        assert (newest.replica, newest.found_over_by) == ("R2", None)
        assert (before.replica, before.end_reason) == ("R1", "released the lease")
        assert world.shared.database.completions == []


def barriers(world: World) -> list[tuple[type, Formats]]:
    """Those in force, in their order: whose claim or release, and what it names."""
    topic = world.shared.topic
    reading = read_records(begin(topic.topic_id), topic.records(0, topic.end_offset))
    return [(type(one.record.granter), of_barrier(one.record)) for one in reading.barriers]


async def test_a_claim_names_what_was_raised_and_never_less_than_the_log(tmp_path: Path) -> None:
    """Goal: rules come into force with the next claim, and nothing that is lost or unknown takes them back. Method:
    raise them under a holder, hand over; forget the raise, hand over; raise what nobody knows, hand over."""
    raised = NEXT
    with registered():
        async with asyncio.timeout(LIFE_MAX_S), World() as world:
            for number in (1, 2):
                replica = LeasedReplica(world.shared, f"R{number}", folder=tmp_path / str(number))
                replica.start()
                world.push_async_callback(replica.stop)
                await replica.until_active()
                assert replica.participant.activation is not None
                assert of_barrier(replica.participant.activation.holder.barrier) == (PRESENT if number == 1 else raised)
                world.shared.database.formats = raised
                await replica.stop()
            world.shared.database.formats = PRESENT  # a restored log has no words
            third = LeasedReplica(world.shared, "R3", folder=tmp_path / "3")
            third.start()
            world.push_async_callback(third.stop)
            await third.until_active()
            world.shared.database.formats = Formats(7, 9)  # by a newer release
            await third.stop()
            fourth = LeasedReplica(world.shared, "R4", folder=tmp_path / "4")
            fourth.start()
            world.push_async_callback(fourth.stop)
            await asyncio.sleep(2 * world.shared.election.tick_s)
            assert not fourth.participant.standing().active
        reigns = [[(Claim, formats), (Release, formats)] for formats in (PRESENT, raised, raised)]
        assert barriers(world)[1:] == [barrier for reign in reigns for barrier in reign]


async def test_a_replica_whose_ledger_lags_lets_others_lead_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: no activation waits for a ledger that is made anew, while another replica has one. Method: a ledger that
    lags seven records; how fit its replica calls itself."""
    async with asyncio.timeout(LIFE_MAX_S), World() as world:
        replica = await world.replica(1, folder=tmp_path)
        await replica.until_active()
        assert replica.participant.readiness().lag_records == 0
        monkeypatch.setattr(DerivedLedger, "lag_records", property(lambda ledger: 7))
        assert replica.participant.readiness().lag_records == 7
