"""Faults against a running cluster under load, one function each; the tests run each once, the bench many times.

The audit judges safety afterwards. These functions measure how long applications were not served.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic, monotonic_ns

from replica.health import ReplicaHealth
from replica.local.cluster import LocalCluster
from replica.local.process import ServerFailed, until
from replica.local.replica import ReplicaProcess
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from replica.notary.errors import LogUnavailable
from tests.faults.load import ClientLoad, LoadBroken, Outage, client_load, outage_around

BEFORE_S = 1.0  # of load before the fault
AFTER_S = 1.0  # and after another replica serves
FROZEN_BEYOND_LEASE_S = 1.0
ZOMBIE_WATCHED_S = 2.0
RETURN_MAX_S = 120.0

Fault = Callable[[ReplicaProcess], None]
KILL_GROUP: Fault = ReplicaProcess.kill_group
KILL_CORE: Fault = ReplicaProcess.kill_core
STOP: Fault = ReplicaProcess.terminate
FREEZE_CORE: Fault = ReplicaProcess.freeze_core
FREEZE_GROUP: Fault = ReplicaProcess.freeze_group


@dataclass(slots=True)
class TakeOver:
    """One fault and what followed. `outage` is filled in once the history was read."""

    fallen: str
    successor: str
    fault_ns: int
    until_ns: int = 0
    activation_steps_s: dict[str, float] = field(default_factory=dict)
    zombie_claims: int = 0  # health answers of a replica that was thawed after another had taken over: that it leads

    def outage(self, load: ClientLoad) -> Outage:
        """How long no client was served."""
        return outage_around(load.successes_ns(), self.fault_ns, self.until_ns)


async def fail_over(cluster: LocalCluster, fault: Fault) -> TakeOver:
    """Hurt the active replica so that it ends; returns once another one has served and the fallen one follows again.

    The caller keeps the load up, before and after.
    """
    active = await cluster.wait_for_active()
    await asyncio.sleep(BEFORE_S)
    fault_ns = monotonic_ns()
    fault(active)
    take_over = await _succeeded(cluster, active, fault_ns)
    await wait_for_return(cluster)
    return take_over


async def freeze_beyond_lease(
    cluster: LocalCluster, fault: Fault, process: str, **changes: int
) -> tuple[TakeOver, ClientLoad]:
    """Freeze the active replica until another one serves and its lease is long over, then let it run on.

    A client of its own keeps asking the frozen replica, past HAProxy; its load is returned, stopped, for the audit.
    `changes`: fields of its ClientOrder.
    """
    active = await cluster.wait_for_active()
    direct = client_load(cluster, process, behind=active, **{"singles": 4, "batches": 1, **changes})
    direct.start()
    try:
        await asyncio.sleep(BEFORE_S)
        fault_ns = monotonic_ns()
        fault(active)
        lease_over_s = monotonic() + cluster.config.election.lease_s + FROZEN_BEYOND_LEASE_S
        take_over = await _succeeded(cluster, active, fault_ns)
        await asyncio.sleep(max(0.0, lease_over_s - monotonic()))
        active.thaw()
        take_over.zombie_claims = await _claims_of(cluster, active)
    finally:
        active.thaw()
        await direct.stop()
    await wait_for_return(cluster)
    return take_over, direct


@contextmanager
def frozen(replica: ReplicaProcess, fault: Fault) -> Iterator[None]:
    """A replica stands still while the block runs."""
    fault(replica)
    try:
        yield
    finally:
        replica.thaw()


async def wait_for_return(cluster: LocalCluster) -> None:
    """Wait until every replica leads, or follows and is ready to take over, and every log node answers.

    Where all serve, each serves as well. Raises TimeoutError.
    """
    await _within(RETURN_MAX_S, lambda: all_back(cluster))


async def all_back(cluster: LocalCluster) -> bool:
    """Whether all of that is so now."""
    healths = (await cluster.healths()).values()
    back = all(health is not None and _is_back(health) for health in healths)
    return back and await _log_nodes_answer(cluster)


def _is_back(health: ReplicaHealth) -> bool:
    return (health.active or health.serving == "one") and (health.leads or health.ready)


async def _log_nodes_answer(cluster: LocalCluster) -> bool:
    """Whether the log stands the loss of a node: a restarted one reads its log first, for seconds if that is long."""
    settings = cluster.config.log.settings
    if not isinstance(settings, RaftLogSettings):
        return True
    log = RaftLog(settings)
    try:
        configurations = (await log.membership()).configurations
    except LogUnavailable:
        return False
    finally:
        await log.close()
    return all(each.live == each.nodes for each in configurations)


async def successor_of(cluster: LocalCluster, fallen: ReplicaProcess) -> ReplicaProcess:
    """Who leads in place of a replica, once applications reach it. Raises LoadBroken: an outage without an end."""
    try:
        return await cluster.wait_for_active(other_than=fallen.name)
    except ServerFailed as error:
        raise LoadBroken(f"nobody took over from {fallen.name}") from error


async def _succeeded(cluster: LocalCluster, fallen: ReplicaProcess, fault_ns: int) -> TakeOver:
    successor = await successor_of(cluster, fallen)
    await asyncio.sleep(AFTER_S)
    until_ns = monotonic_ns()
    health = (await cluster.healths())[successor.name]
    steps_s = {} if health is None else health.activation_steps_s
    return TakeOver(fallen.name, successor.name, fault_ns, until_ns, steps_s)


async def _claims_of(cluster: LocalCluster, zombie: ReplicaProcess) -> int:
    """How often a thawed replica says that it leads, from its very first answer on."""
    claims, until_s = 0, monotonic() + ZOMBIE_WATCHED_S
    while monotonic() < until_s:
        health = (await cluster.healths())[zombie.name]
        claims += health is not None and health.leads
    return claims


async def _within(limit_s: float, probe: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(limit_s):
        await until(probe)
