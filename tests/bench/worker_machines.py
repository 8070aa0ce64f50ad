"""Replicas that all serve, each on a machine of its own, when one machine is cut off or dies: part of `--only workers`.

The lab is the reference deployment's: three brokers, a primary and its synchronous standby, and HAProxy, each with a
network of its own. A machine that dies here has the lock's holder and the broker that leads the log.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from replica.local.cluster import remove_cluster
from replica.local.replica import ReplicaProcess
from tests.bench.report import Report
from tests.bench.sizes import Sizes
from tests.bench.worker_faults import Injure, all_serve, audited, own_clients, play, read_calls, tell_faults
from tests.faults.lab.brokers import start_again
from tests.faults.lab.lab import Lab, machines_of
from tests.faults.lab.network import kind_of_network, network_of
from tests.faults.under_load import end_of_log

EACH_OF_KILLS = 10  # one fault of each kind for so many kills of the bench's sizes
_Make = Callable[[Lab], Injure]


@asynccontextmanager
async def _unplugged(lab: Lab, fallen: ReplicaProcess) -> AsyncIterator[None]:
    """The replica's machine reaches nobody, and nobody it."""
    with lab.network.unplugged(fallen.name):
        yield


@asynccontextmanager
async def _killed_with_leader(lab: Lab, fallen: ReplicaProcess) -> AsyncIterator[None]:
    """The replica and the broker that leads the log die in one moment."""
    broker = await asyncio.to_thread(lab.leader)
    fallen.kill_group()
    await broker.process.kill()
    try:
        yield
    finally:
        await start_again(lab, broker)


KINDS: dict[str, Callable[[Lab, ReplicaProcess], AbstractAsyncContextManager[None]]] = {
    "other_cut": _unplugged,
    "holder_cut": _unplugged,
    "holder_and_leader_killed": _killed_with_leader,
}


async def measure_worker_machines(folder: Path, sizes: Sizes, report: Report) -> None:
    """Each kind of fault, in turn, on one lab. Raises Violation, SoftwareMissing."""
    each = max(1, sizes.kills // EACH_OF_KILLS)
    report.section(f"A machine of three whose replicas all serve is cut off or dies, {each} times each")
    report.line("machines", f"{kind_of_network()}; three brokers, a database and its standby, HAProxy")
    await remove_cluster(folder)
    network = network_of(machines_of("kafka", embedded=False))
    try:
        network.start()
        async with Lab(folder, network, "kafka", embedded=False, further={"serving": "all"}) as lab:
            await _measure(lab, each, report)
        await remove_cluster(folder)
    finally:
        network.stop()


async def _measure(lab: Lab, each: int, report: Report) -> None:
    await all_serve(lab, "all")
    first_offset = await end_of_log(lab)
    async with AsyncExitStack() as stack:
        own = await own_clients(lab, stack)
        busy_before = os.getloadavg()[0]
        faults = [
            await play(lab, kind, f"endpoint-{kind}-{turn}", partial(injure, lab))
            for kind, injure in KINDS.items()
            for turn in range(each)
        ]
        report.line("load of the machine", f"{busy_before:.1f} to {os.getloadavg()[0]:.1f}")
    tell_faults("workers_machines", faults, {name: read_calls(load.history) for name, load in own.items()}, report)
    await audited(lab, "workers_machines", [*own.values(), *(fault.endpoint for fault in faults)], first_offset, report)
