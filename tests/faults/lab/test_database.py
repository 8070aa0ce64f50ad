"""The database restarts, hangs, or is replaced by its standby; once with the old primary alive."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic_ns

import psycopg
import pytest

from replica.local.postgres import PostgresServer
from tests.faults.lab.lab import DATABASES, Lab
from tests.faults.lab.scene import Scene, scene, within
from tests.faults.load import outage_around
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return

pytestmark = [
    pytest.mark.not_on("embedded", "there is no database"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

ROUNDS = 2
HUNG_S = 6.0  # longer than the lease
RETURN_GOAL_S = 2.0  # from the return of the database, or the promotion, to the first success
PARTITION_GOAL_S = 4.5  # the same, but those who are to take over must first find themselves cut off: lease + 1.5 s


@pytest.mark.scenario("F8", "Postgres restarts; from its return", outage_goal_s=RETURN_GOAL_S)
@pytest.mark.parametrize("immediate", [pytest.param(False, id="fast"), pytest.param(True, id="immediate")])
async def test_one_replica_leads_after_a_restart_of_the_database(lab: Lab, scenario: Scenario, immediate: bool) -> None:
    """Goal: the holder notices, and one replica leads afterwards. Method: stop and start the primary, twice."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            fault_ns = monotonic_ns()
            await lab.primary.stop(immediate=immediate)
            await lab.primary.start()
            back_ns = monotonic_ns()
            await now.served_since(back_ns)
            scenario.served_again(now.load, back_ns)
            scenario.fired(f"Postgres was down for {seconds(fault_ns, back_ns)}, {pause(now, fault_ns)}")
            await wait_for_return(lab)


@pytest.mark.scenario("F10", "the database hangs; from its return", outage_goal_s=RETURN_GOAL_S)
@pytest.mark.parametrize("part", ["backend", "host"])
async def test_a_hung_database_is_noticed_by_its_silence(lab: Lab, scenario: Scenario, part: str) -> None:
    """Goal: the holder steps down although the kernel still answers. Method: SIGSTOP of its backend, or of all.

    No replica can take over meanwhile: for all others, a backend that hangs still holds the lock.
    """
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            active = await now.active_replica()
            fault_ns = monotonic_ns()

            async def stepped_down(name: str = active.name) -> bool:
                health = (await lab.healths())[name]
                return health is not None and not health.leads

            with frozen_backend(await lock_holder(lab.primary)) if part == "backend" else frozen(lab.primary):
                await within(HUNG_S, stepped_down, f"{active.name} did not step down")
                await asyncio.sleep(max(0.0, HUNG_S - (monotonic_ns() - fault_ns) / 1e9))
            back_ns = monotonic_ns()
            await now.served_since(back_ns)
            scenario.served_again(now.load, back_ns)
            stood_still = f"the {part} of {active.name}'s session stood still for {seconds(fault_ns, back_ns)}"
            scenario.fired(f"{stood_still}, it stepped down, {pause(now, fault_ns)}")
            await wait_for_return(lab)


@pytest.mark.scenario("F9", "the primary is lost, the standby is promoted; from then", outage_goal_s=RETURN_GOAL_S)
async def test_the_standby_takes_over_for_a_lost_primary(lab: Lab, scenario: Scenario) -> None:
    """Goal: nothing acknowledged is lost with a primary. Method: kill it, promote; to and fro."""
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            await now.active_replica()
            lost = lab.primary
            await lost.kill()
            what = f"{lab.machine_of(lost)} was killed, {{}} promoted"
            if lab.log_kind == "postgres":  # nobody reads a record that only one server has: from a standby's return
                back_ns = await promoted(now, what, standby=lost)
            else:
                back_ns = await promoted(now, what)
                await lab.rejoin(lost)
            scenario.served_again(now.load, back_ns)
            await wait_for_return(lab)


@pytest.mark.not_on("postgres", "the promoted one has no standby while the old one lives: test_replication.py")
@pytest.mark.scenario(
    "F9", "the standby is promoted while the old primary lives; from then", outage_goal_s=PARTITION_GOAL_S
)
async def test_two_primaries_make_one_active(lab: Lab, scenario: Scenario) -> None:
    """Goal: no answer counts twice, no epoch is used twice. Method: primary and active on one side of a cut, all
    others on the other; Kafka and clients reach everybody.
    """
    async with scene(lab, scenario) as now:
        for _ in range(ROUNDS):
            active = await now.active_replica()
            old, old_host = lab.primary, lab.machine_of(lab.primary)
            (new_host,) = set(DATABASES) - {old_host}
            others = [name for name in lab.replicas if name != active.name]
            with lab.network.cut([old_host], [new_host, *others]), lab.network.cut([active.name], [new_host]):
                fault_ns = await promoted(now, f"{old_host} stayed with {active.name} alone, {{}} promoted")
                successor = await lab.wait_for_active(other_than=active.name)
                assert successor.name != active.name
                scenario.served_again(now.load, fault_ns)
                assert old.process.running
                await old.kill()
            await lab.rejoin(old)
            await wait_for_return(lab)


async def promoted(now: Scene, what: str, standby: PostgresServer | None = None) -> int:
    """Promote the standby; wait until clients are served. Returns the moment when it had become a primary.

    With `standby`, that server becomes its standby first: the moment when it had.
    """
    fault_ns = await now.lab.promote()
    now.scenario.fired(what.format(now.lab.machine_of(now.lab.primary)))
    if standby is not None:
        await now.lab.rejoin(standby)
        fault_ns = monotonic_ns()
    await now.served_since(fault_ns)
    return fault_ns


def pause(now: Scene, fault_ns: int) -> str:
    """How long clients had no success around a fault, in words."""
    return f"clients waited {outage_around(now.load.successes_ns(), fault_ns).outage_s:.1f} s"


def seconds(begin_ns: int, end_ns: int) -> str:
    """A time between two moments, in words."""
    return f"{(end_ns - begin_ns) / 1e9:.1f} s"


async def lock_holder(server: PostgresServer) -> int:
    """Process id of the backend that holds the participant's lock."""
    async with await psycopg.AsyncConnection.connect(server.dsn("notary")) as connection:
        cursor = await connection.execute("SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted")
        ((pid,),) = await cursor.fetchall()
    return int(pid)


@contextmanager
def frozen_backend(pid: int) -> Iterator[None]:
    """One backend stands still while the block runs."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen(server: PostgresServer) -> Iterator[None]:
    """All processes of a server stand still while the block runs; the kernel still answers for them."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()
