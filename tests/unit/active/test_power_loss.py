"""All power is lost while completions cannot be published: what was answered is never spent again.

Whole cores on virtual time. The log loses its tail, the indexes are gone or were moved away, and each seen file goes
back to its last sync.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from copy import deepcopy
from typing import Any

import pytest

from replica.active.fitness import Unfit
from replica.index.memory import MemoryIndex
from replica.marks.keeper import HEAR_MAX_S
from replica.marks.lead import LEAD_MAX_S
from replica.marks.seen_file import SeenDisk
from replica.notary.answers import Answer, Notarised, NotNow
from replica.notary.errors import LogRefused, LogTruncated, NotaryError
from replica.settings import CoreSettings
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import Replica, World, name_of, state, submission

NAMES = ("R1", "R2")
SETTLED_S = 2.0  # every mark is on the disks
STARTED_MAX_S = 30.0


class Site(World):
    """Two replicas that all serve, over a log that does not survive a power cut."""

    def __init__(self, **shared: object) -> None:
        given: dict[str, object] = {"all_serve": True, "peers": NAMES, "survives_power_loss": False}
        super().__init__(**(given | shared))
        self.publishing = asyncio.Event()
        self.publishing.set()
        self.shared.publishing = self.publishing
        self.disks = {name: SeenDisk() for name in NAMES}
        self.replicas: dict[str, Replica] = {}
        self.spent = 0
        self.answered: list[int] = []  # transactions that clients were told are notarised

    async def begin(self, name: str, index: MemoryIndex | None = None) -> Replica:
        self.replicas[name] = await self.replica(int(name[1:]), index, disk=self.disks[name])
        return self.replicas[name]

    async def spend(self, name: str, count: int) -> list[Answer]:
        """Transactions that each consume a state of their own; then nobody else may."""
        first, self.spent = self.spent + 1, self.spent + count
        answers = await self.replicas[name].submit(
            *[submission(at, [state(at + 10**6)]) for at in range(first, first + count)]
        )
        self.answered += [
            at for at, answer in zip(range(first, first + count), answers, strict=True) if isinstance(answer, Notarised)
        ]
        return answers

    async def spend_again(self, name: str) -> int:
        """Other transactions over the same states: how many are notarised, which is a double spend each."""
        again = [submission(at + 10**5, [state(at + 10**6)]) for at in self.answered]
        answers = await self.replicas[name].submit(*again)
        return sum(isinstance(answer, Notarised) for answer in answers)

    async def cut_power(self, end_offset: int) -> None:
        """All processes end, the log loses its tail, and each seen file what was not synced."""
        for replica in self.replicas.values():
            replica.log.reachable = False
        for replica in self.replicas.values():
            await self.lose(replica)
        self.shared.topic.truncate(end_offset)
        for disk in self.disks.values():
            disk.cut()

    async def grow_again(self, count: int) -> None:
        """Somebody appends to the log that was cut."""
        for at in range(count):
            self.shared.topic.store(f"no record of a notary, {at}".encode())

    async def ended(self, name: str) -> NotaryError | None:
        """The error with which the replica ends; None: it serves."""
        replica = self.replicas[name]
        async with asyncio.timeout(STARTED_MAX_S):
            while not replica.participant.broken.done():
                if replica.participant.standing().active:
                    return None
                await asyncio.sleep(0.05)
        error = replica.participant.broken.exception()
        assert isinstance(error, NotaryError)
        return error


def play(story: Callable[[Site], Coroutine[Any, Any, None]], **shared: object) -> None:
    async def run() -> None:
        async with Site(**shared) as site:
            await story(site)

    run_virtually(run())


async def answered_and_not_published(site: Site, settle_s: float = SETTLED_S) -> int:
    """Both replicas serve; the table is locked, and more is answered. Returns the log's end before that."""
    for name in NAMES:
        await (await site.begin(name)).until_active()
    await site.spend("R1", 20)
    await asyncio.sleep(1.0)
    end = site.shared.topic.end_offset
    site.publishing.clear()
    await site.spend("R1", 30)
    await asyncio.sleep(settle_s)
    return end


def test_all_indexes_are_moved_away() -> None:
    """The double spend of a site that lost all power: the published position alone does not show it."""

    async def story(site: Site) -> None:
        end = await answered_and_not_published(site)
        assert len(site.answered) == 50
        await site.cut_power(end)
        site.publishing.set()
        for name in NAMES:
            await site.begin(name)
        for name in NAMES:
            assert isinstance(await site.ended(name), LogTruncated)
            assert await site.spend_again(name) == 0

    play(story)


@pytest.mark.parametrize("disks_are_left", [True, False])
def test_a_snapshot_of_the_log_and_its_database_together(disks_are_left: bool) -> None:
    """The log's own server goes back, on its timeline, and the published position with it: only replicas' disks show
    it. With all of them gone nothing does, which runbooks/database-restore.md says."""

    async def story(site: Site) -> None:
        for name in NAMES:
            await (await site.begin(name)).until_active()
        await site.spend("R1", 20)
        await asyncio.sleep(SETTLED_S)
        snapshot, end = deepcopy(site.shared.database), site.shared.topic.end_offset
        await site.spend("R1", 30)
        await asyncio.sleep(SETTLED_S)
        await site.cut_power(end)
        site.shared.database = snapshot
        for name in NAMES:
            if not disks_are_left:
                site.disks[name].remove()
            await site.begin(name)
        for name in NAMES:
            assert isinstance(await site.ended(name), LogTruncated) is disks_are_left

    play(story, survives_power_loss=True)


def test_one_index_is_left_and_its_replica_does_not_end_alone() -> None:
    """The other one has lost its disk, so only its peer knows."""

    async def story(site: Site) -> None:
        end = await answered_and_not_published(site)
        left = site.replicas["R1"].index
        await site.cut_power(end)
        site.disks["R2"].remove()
        site.disks["R1"].remove()
        site.publishing.set()
        await site.begin("R1", left)
        await site.begin("R2")
        for name in NAMES:
            assert isinstance(await site.ended(name), LogTruncated)
            assert await site.spend_again(name) == 0

    play(story)


def test_the_log_grew_again_past_every_mark() -> None:
    async def story(site: Site) -> None:
        end = await answered_and_not_published(site)
        await site.cut_power(end)
        await site.grow_again(500)
        site.publishing.set()
        for name in NAMES:
            await site.begin(name)
        for name in NAMES:
            error = await site.ended(name)
            assert isinstance(error, LogRefused)
            assert "another record" in error.detail

    play(story)


@pytest.mark.parametrize("survives", [True, False])
def test_a_cut_that_takes_nothing_is_survived(survives: bool) -> None:
    async def story(site: Site) -> None:
        await answered_and_not_published(site)
        await site.cut_power(site.shared.topic.end_offset)
        site.publishing.set()
        for name in NAMES:
            await site.begin(name)
        for name in NAMES:
            assert await site.ended(name) is None
            assert await site.spend_again(name) == 0
        await asyncio.sleep(SETTLED_S)
        assert all(isinstance(answer, Notarised) for answer in await site.spend("R2", 5))

    play(story, survives_power_loss=survives)


def test_answers_do_not_run_ahead_of_the_marks() -> None:
    """A peer that is away covers nothing: after a second nothing more is answered, until publication goes on."""

    async def story(site: Site) -> None:
        await (await site.begin("R1")).until_active()
        await asyncio.sleep(5.0)
        site.publishing.clear()
        assert all(isinstance(answer, Notarised) for answer in await site.spend("R1", 10))
        await asyncio.sleep(LEAD_MAX_S)
        refused = await site.spend("R1", 3)
        assert all(isinstance(answer, NotNow) and answer.code == "OVERLOADED" for answer in refused)
        site.publishing.set()
        await asyncio.sleep(1.0)
        assert all(isinstance(answer, Notarised) for answer in await site.spend("R1", 3))

    play(story)


def test_a_look_up_does_not_run_ahead_of_the_marks_either() -> None:
    async def story(site: Site) -> None:
        r1 = await site.begin("R1")
        await r1.until_active()
        await asyncio.sleep(5.0)
        site.publishing.clear()
        await site.spend("R1", 1)
        found = await r1.link.look_up(name_of(1))
        assert isinstance(found, Notarised)
        await asyncio.sleep(LEAD_MAX_S)
        refused = await r1.link.look_up(name_of(1))
        assert isinstance(refused, NotNow)
        assert refused.code == "OVERLOADED"

    play(story)


def test_records_bound_the_lead_as_well() -> None:
    async def story(site: Site) -> None:
        await (await site.begin("R1")).until_active()
        await asyncio.sleep(5.0)
        site.publishing.clear()
        answers = await site.spend("R1", 250)
        told = sum(isinstance(answer, Notarised) for answer in answers)
        assert told <= 100
        assert all(isinstance(answer, Notarised | NotNow) for answer in answers)

    play(story, core=CoreSettings(exposed_max_records=100, read_batch_max=10))


def test_the_marks_of_a_peer_let_service_go_on_without_the_database() -> None:
    async def story(site: Site) -> None:
        await answered_and_not_published(site)
        for _ in range(20):
            answers = await site.spend("R2", 5)
            assert all(isinstance(answer, Notarised) for answer in answers)
            await asyncio.sleep(0.5)

    play(story)


def test_a_synced_log_exposes_nothing_and_nothing_waits() -> None:
    async def story(site: Site) -> None:
        await (await site.begin("R1")).until_active()
        await asyncio.sleep(5.0)
        site.publishing.clear()
        for _ in range(5):
            assert all(isinstance(answer, Notarised) for answer in await site.spend("R1", 10))
            await asyncio.sleep(LEAD_MAX_S)

    play(story, survives_power_loss=True)


def test_a_cloned_disk_stops_its_own_replica_only() -> None:
    """R2's machine was cloned from a test site, which went on under an activation of its own."""

    async def story(site: Site) -> None:
        for name in NAMES:
            await (await site.begin(name)).until_active()
        await site.spend("R1", 20)
        async with Site(seed=2) as clone:
            await (await clone.begin("R1")).until_active()
            await clone.spend("R1", 60)
            await asyncio.sleep(SETTLED_S)
            index, disk = clone.replicas["R1"].index, clone.disks["R1"]
        await site.lose(site.replicas["R2"])
        site.disks["R2"] = disk
        await site.begin("R2", index)
        assert isinstance(await site.ended("R2"), LogRefused)
        await asyncio.sleep(SETTLED_S)
        assert await site.ended("R1") is None
        assert site.replicas["R1"].participant.marks.foreign == {"R2"}
        assert all(isinstance(answer, Notarised) for answer in await site.spend("R1", 5))

    play(story)


def test_a_worker_says_why_it_does_not_serve_before_the_marks_were_compared() -> None:
    async def story(site: Site) -> None:
        for name in NAMES:
            await (await site.begin(name)).until_active()
        await site.lose(site.replicas["R2"])
        r2 = Replica(site.shared, "R2", disk=site.disks["R2"])  # nobody answers it
        r2.start()
        await asyncio.sleep(HEAR_MAX_S - 0.5)
        assert r2.participant.serving.unfit is not None
        assert r2.participant.serving.unfit[0] is Unfit.MARKS
        await r2.until_active()
        await r2.stop()

    play(story)


def test_who_finds_that_the_log_lost_records_is_mute_while_it_ends() -> None:
    async def story(site: Site) -> None:
        end = await answered_and_not_published(site)
        site.shared.topic.truncate(end)
        await site.grow_again(500)
        for name in NAMES:
            replica = site.replicas[name]
            await asyncio.wait([replica.participant.broken], timeout=5.0)
            assert isinstance(replica.participant.broken.exception(), LogRefused)
            assert isinstance(await replica.link.look_up(name_of(1)), NotNow)

    play(story)


def test_the_log_is_cut_and_grows_again_under_replicas_that_are_alive() -> None:
    """They read on at the next offset, in a log with another past: the record at the applied position shows it."""

    async def story(site: Site) -> None:
        end = await answered_and_not_published(site)
        site.shared.topic.truncate(end)
        await site.grow_again(500)
        await asyncio.sleep(5.0)
        for name in NAMES:
            replica = site.replicas[name]
            assert isinstance(replica.participant.broken.exception(), LogRefused)
            assert replica.participant.follower.applied_offset < 500

    play(story)
