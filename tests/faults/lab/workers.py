"""What happens to a worker that does not hold the lock, where every replica serves."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from time import monotonic_ns

from replica.local.replica import ReplicaProcess
from tests.faults.lab.lab import BROKERS, DATABASES, REPLICAS, Lab
from tests.faults.lab.scene import Scene, within
from tests.faults.load import ClientLoad, client_load
from tests.faults.scenarios import Fault, wait_for_return

OUT_MAX_S = 10.0  # until HAProxy sends nobody to a worker that a fault has met
BACK_MAX_S = 60.0  # and until it does so again
_numbers = itertools.count(1)


async def worker_without_lock(now: Scene) -> ReplicaProcess:
    """One of them, once the holder of the lock is known and all serve."""
    await now.active_replica()
    return (await now.lab.passives())[0]


async def leaves_alone(
    now: Scene, worker: ReplicaProcess, fault: AbstractContextManager[object], what: str, lasts_s: float = 0.0
) -> None:
    """While the fault lasts HAProxy sends nobody to the worker, the others serve, and the lock stays where it is; then
    the worker serves again. A client of its own asks it all the time; what that was told is for the audit.

    `lasts_s`: the least time of the fault. Raises ServerFailed, LoadBroken.
    """
    epoch_before = now.claims.newest_epoch
    async with asked_directly(now, worker):
        fault_ns = monotonic_ns()
        with fault:
            await in_rotation(now.lab, worker, False, OUT_MAX_S)
            await now.served_since(monotonic_ns())
            until_ns = monotonic_ns()
            await asyncio.sleep(max(0.0, lasts_s - (until_ns - fault_ns) / 1e9))
        await wait_for_return(now.lab)
        await in_rotation(now.lab, worker, True, BACK_MAX_S)
    assert now.claims.newest_epoch == epoch_before, "the lock changed hands"
    now.scenario.fired(f"{worker.name}, without the lock, {what}; out of rotation, and back")
    now.scenario.outage(now.load, fault_ns, until_ns)


async def in_rotation(lab: Lab, worker: ReplicaProcess, wanted: bool, limit_s: float) -> None:
    """Return once HAProxy sends clients to the worker, or once it does not. Raises ServerFailed."""

    async def as_wanted() -> bool:
        return (await lab.balancer.servers())[worker.name].up is wanted

    await within(limit_s, as_wanted, f"{worker.name} is {'not ' if wanted else ''}in rotation")


@asynccontextmanager
async def asked_directly(now: Scene, replica: ReplicaProcess) -> AsyncIterator[ClientLoad]:
    """A client of one replica, past HAProxy, while the block runs; its history is for the audit."""
    direct = client_load(now.lab, f"{now.load.name}-direct-{next(_numbers)}", behind=replica, singles=4, batches=1)
    direct.start()
    try:
        await direct.begun()
        yield direct
    finally:
        await direct.stop()
    now.scenario.add_history(direct.history)


def log_of(lab: Lab) -> tuple[str, ...]:
    """The machines that a replica reaches the log at, its own left out."""
    return {"kafka": BROKERS, "postgres": DATABASES}.get(lab.log_kind, REPLICAS)


def cut_off_from_log(lab: Lab, worker: ReplicaProcess) -> AbstractContextManager[None]:
    """The worker reaches no server of the log, and everything else."""
    return lab.network.cut([worker.name], [name for name in log_of(lab) if name != worker.name])


@contextmanager
def struck(replica: ReplicaProcess, fault: Fault) -> Iterator[None]:
    """A fault that the replica recovers from by itself, such as a kill."""
    fault(replica)
    yield
