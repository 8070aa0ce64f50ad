"""Power is lost, of the whole site or of a rack: disks lose what was not synced, and no answer is lost.

Every cut proves itself on every disk: see `tests/lossy_disk.py`.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from time import monotonic_ns

import pytest

from tests.ends import ends_by_design
from tests.faults.lab.lab import BALANCER
from tests.faults.lab.power import LabOnDisks, machines_with_disks
from tests.faults.lab.scene import Scene, scene
from tests.faults.load import LoadBroken
from tests.faults.power.site import codes_in, kept_out, publication_held_up, rack_of
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.tools import Words
from tests.faults.witness import witness

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

UNSYNCED_S = 6.0  # of load between the moment when everything is on disk and the cut
GIVE_UP_S = 120  # of clients: the outage contains the start of every server
SITE_GOAL_S = 20.0  # from the return of power; brokers take the longest to start
RACK_GOAL_S = 4.5  # as where a machine loses its link: nothing tells the others, so the lease ends first
PRIMARY_GOAL_S = 5.0  # from the return of its machine: Postgres recovers, and as after any restart of it
_OF_ONE_REPLICA = "completions are published in each replica's own ledger"
_NO_DATABASE = "there is no database"


@pytest.mark.scenario("F38", "all power is lost; from its return", outage_goal_s=SITE_GOAL_S)
async def test_no_answer_is_lost_with_all_power(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal: every answer outlives the cut, and service returns by itself. Method: cut all disks under load, start."""
    async with scene(lab, scenario, give_up_s=GIVE_UP_S) as now:
        await now.active_replica()
        await all_power_lost(lab, now)


@pytest.mark.not_on("embedded", _OF_ONE_REPLICA)
@pytest.mark.scenario(
    "F39", "all power is lost while nothing can be published; from its return", outage_goal_s=SITE_GOAL_S
)
async def test_no_unpublished_answer_is_lost_with_all_power(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal: answers do not rest on the published position. Method: lock the table of completions, as a long DDL
    statement does, under load; cut all disks."""
    async with scene(lab, scenario, give_up_s=GIVE_UP_S) as now:
        await now.active_replica()
        await all_power_lost(lab, now, held=True)


@pytest.mark.scenario("F40", "the active's rack loses power, and returns", outage_goal_s=RACK_GOAL_S)
async def test_a_rack_without_power_is_one_fault(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal: the others serve on with all answers. Method: cut the machines of the active, of its log node and of the
    broker that leads, disks and links; power on; again, so that what returned has to serve."""
    async with scene(lab, scenario) as now:
        for _ in range(2):
            await rack_lost(lab, now)


@pytest.mark.not_on("embedded", _NO_DATABASE)
@pytest.mark.scenario("F40", "the primary's machine loses power; from its return", outage_goal_s=PRIMARY_GOAL_S)
async def test_a_primary_without_power_has_what_it_committed(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal: nothing is committed that is not on disk. Method: cut the primary's disk and link, power on."""
    async with scene(lab, scenario, give_up_s=GIVE_UP_S) as now:
        await now.active_replica()
        primary = lab.machine_of(lab.primary)
        await machine_lost(lab, now, primary)
        back_ns = await lab.power_on(primary)
        await now.served_since(back_ns)
        scenario.served_again(now.load, back_ns)


@pytest.mark.scenario("F41", "a rack loses power, and returns with older disks", outage_goal_s=RACK_GOAL_S)
async def test_an_older_disk_is_caught_up_or_kept_out(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal: nothing is decided by what a set-back disk has forgotten. Method: a snapshot under load, more load; the
    rack loses power and its disks come back as they were in the snapshot."""
    async with scene(lab, scenario) as now:
        await rack_lost(lab, now, set_back=True)


@pytest.mark.scenario("F43", "a passive's machine returns with a clone of the active's disk, then with its own")
async def test_a_cloned_disk_disturbs_nobody(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal: a machine that takes itself for another one neither serves wrongly nor stops anybody. Method: a snapshot of
    the active's disk under load; a passive's machine loses power and gets it, log node and all."""
    async with scene(lab, scenario) as now:
        active = await now.active_replica()
        (cloned, *_) = await lab.passives()
        clone = lab.disks[active.name].snapshot()
        await machine_lost(lab, now, cloned.name)
        lab.disks[cloned.name].swap(clone)
        with ends_by_design(cloned):
            await lab.power_on(cloned.name)
            await now.served_since(monotonic_ns())
            await asyncio.sleep(UNSYNCED_S)
            health = (await lab.healths())[cloned.name]
            state = "no answer" if health is None else "ready" if health.ready else "not ready"
            scenario.fired(f"{cloned.name} with a clone of {active.name}'s disk: {state}")
            await now.served_since(monotonic_ns())
            await machine_lost(lab, now, cloned.name)
            lab.disks[cloned.name].swap(clone)
            await lab.power_on(cloned.name)
            await wait_for_return(lab)
        clone.unlink()


async def all_power_lost(lab: LabOnDisks, now: Scene, *, held: bool = False, unsynced_s: float = UNSYNCED_S) -> None:
    """Cut the whole site's power under load; wait until clients are served again, and nothing is spent twice."""
    machines = [*machines_with_disks(lab.log_kind, lab.embedded), BALANCER]
    async with witness(lab, now.scenario) as spender:
        async with publication_held_up(lab) if held else nullcontext():
            lab.disks.arm()
            await asyncio.sleep(unsynced_s / 2)
            if not held or lab.config.serving == "all":  # who serves alone must be able to publish
                await spender.spend(100)
            await asyncio.sleep(unsynced_s / 2)
            await lab.lose_power(*machines)
        now.scenario.fired(lab.disks.bring_back())
        words = [Words(replica) for replica in lab.replicas.values()]
        with ends_by_design(*lab.replicas.values()):  # one that starts before its servers may end, and is restarted
            back_ns = await lab.power_on(*machines)
            try:
                await now.served_since(back_ns)
            except LoadBroken as error:
                raise LoadBroken(f"{error}; replicas: {codes_in(words)}") from error
            now.scenario.served_again(now.load, back_ns)
            await wait_for_return(lab)
        await spender.spend_again()


async def machine_lost(lab: LabOnDisks, now: Scene, name: str) -> None:
    """Cut a machine's power under load."""
    lab.disks.arm(name)
    await asyncio.sleep(UNSYNCED_S)
    await lab.lose_power(name)
    now.scenario.fired(f"{name}: {lab.disks.bring_back()}")


async def rack_lost(lab: LabOnDisks, now: Scene, *, set_back: bool = False) -> None:
    """Cut the power of the active's rack; the others serve, then it is back. `set_back`: with disks as they were."""
    active = await now.active_replica()
    rack = await rack_of(lab, active)
    others = [name for name in (*machines_with_disks(lab.log_kind, lab.embedded), BALANCER) if name not in rack]
    snapshots = {name: lab.disks[name].snapshot() for name in rack if set_back}
    lab.disks.arm(*rack)
    await asyncio.sleep(UNSYNCED_S)
    with lab.network.cut(rack, others):  # no connection is closed by a machine that lost power
        fault_ns = monotonic_ns()
        await lab.lose_power(*rack)
        await lab.wait_for_active(other_than=active.name)
        await now.served_since(monotonic_ns())
        until_ns = monotonic_ns()
        lost = lab.disks.bring_back()
    now.scenario.fired(f"{' and '.join(rack)}: {lost}{', then set back' if set_back else ''}")
    for name, image in snapshots.items():
        lab.disks[name].swap(image)
    with ends_by_design(active):
        await lab.power_on(*rack)
        if await kept_out(lab, active.name):
            now.scenario.fired(f"the log node of {active.name} was kept out: it has less than it once acknowledged")
            await machine_lost(lab, now, active.name)
            lab.disks[active.name].swap(snapshots[active.name])  # its own again
            await lab.power_on(active.name)
            for name, node in lab.log_nodes.items():
                if name != active.name:
                    node.kill_group()  # whoever leads keeps it out until then
        await wait_for_return(lab)
    for image in snapshots.values():
        image.unlink()
    now.scenario.outage(now.load, fault_ns, until_ns)
