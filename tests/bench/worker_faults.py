"""Faults of replicas that all serve, and what clients noticed of them: for `workers` and `worker_machines`.

Each replica has clients of its own, and the endpoint has some, each with one call at a time. Waits after a fault are
compared with those before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic_ns
from typing import Literal

from replica.checker.history import read_history
from replica.local.cluster import LocalCluster
from replica.local.process import until
from replica.local.replica import ReplicaProcess
from tests.bench.report import Report
from tests.bench.worker_calls import (
    Call,
    back_after_s,
    between,
    calls,
    longest_s,
    quantile_s,
    unanswered,
    whole,
    within,
)
from tests.faults.audit import audit
from tests.faults.load import ClientLoad, client_load

Serving = Literal["one", "all"]
Injure = Callable[[ReplicaProcess], AbstractAsyncContextManager[None]]
"""Hurts a replica while the block runs."""
BEFORE_S = AFTER_S = 3.0  # before and after a fault, which are compared
CALM_S = 5.0  # before these, until the last one is forgotten: clients of a fallen replica wait between their attempts
ALL_SERVE_MAX_S = 120.0
OWN, ENDPOINT = 4, 6  # clients of each replica, of the endpoint
PAUSE_MS = 10  # between an answer and the next call: waits are to be those of the notary, not of a full machine


@dataclass(frozen=True, slots=True)
class Fault:
    """What was done to whom, and the times around it."""

    kind: str
    fallen: str
    fault_ns: int
    endpoint: ClientLoad  # clients of the endpoint, new for each fault, so that some are behind the replica that falls

    @property
    def before(self) -> tuple[int, int]:
        """The undisturbed time."""
        return self.fault_ns - int(BEFORE_S * 1e9), self.fault_ns - 1

    @property
    def after(self) -> tuple[int, int]:
        """The time that the fault may disturb."""
        return self.fault_ns, self.fault_ns + int(AFTER_S * 1e9)


async def own_clients(cluster: LocalCluster, stack: AsyncExitStack) -> dict[str, ClientLoad]:
    """Clients of each replica, served once, until the stack ends."""
    own = {name: _load(cluster, name, one, OWN) for name, one in cluster.replicas.items()}
    for load in own.values():
        load.start()
        stack.push_async_callback(load.stop)
        await load.begun()
    return own


async def audited(
    cluster: LocalCluster, prefix: str, loads: Sequence[ClientLoad], first_offset: int, report: Report
) -> None:
    """Check what these clients, which have ended, were answered. Raises Violation."""
    checked = await audit(cluster, [load.history for load in loads], first_offset)
    report.add(f"{prefix}_audit", checked, "checked", f"{checked['operations']:,} operations, nothing lost or double")


def _load(cluster: LocalCluster, name: str, behind: ReplicaProcess | None, clients: int) -> ClientLoad:
    changes = {"singles": clients, "batches": 0, "pause_ms": PAUSE_MS, "fresh_only": True}
    return client_load(cluster, f"clients-{name}", behind, **changes)


def read_calls(history: Path) -> list[Call]:
    """The submissions of a client that has ended."""
    with history.open("rb") as stream:
        return list(calls(read_history(stream, history.name)))


async def play(cluster: LocalCluster, kind: str, name: str, injure: Injure) -> Fault:
    """One fault; returns once all serve again. `name`: of the endpoint's clients meanwhile."""
    holder = await cluster.wait_for_active()
    others = [one for one in cluster.replicas.values() if one is not holder]
    fallen = holder if kind.startswith("holder") else others[0]
    endpoint = _load(cluster, name, None, ENDPOINT)
    endpoint.start()
    await endpoint.begun()
    await asyncio.sleep(CALM_S + BEFORE_S)
    fault_ns = monotonic_ns()
    async with injure(fallen):
        await asyncio.sleep(AFTER_S)
    await all_serve(cluster, "all")
    await endpoint.stop()
    return Fault(kind, fallen.name, fault_ns, endpoint)


def tell_faults(prefix: str, faults: Sequence[Fault], own: Mapping[str, list[Call]], report: Report) -> None:
    """What the clients of the others noticed, and when those of the fallen one were back."""
    calm = [call for fault in faults for found in own.values() for call in within(found, *fault.before)]
    _tell_gaps(f"{prefix}_undisturbed", "before the faults, all clients", calm, report)
    every: list[Call] = []
    for kind in dict.fromkeys(fault.kind for fault in faults):
        alike = [fault for fault in faults if fault.kind == kind]
        gaps = [
            call
            for fault in alike
            for name, found in own.items()
            if name != fault.fallen
            for call in between(found, *fault.after)
        ]
        every += gaps
        _tell_gaps(f"{prefix}_{kind}_survivor", f"{kind.replace('_', ' ')}: clients of the others", gaps, report)
        back_s = [round(back_after_s(whole(read_calls(one.endpoint.history)), *one.after), 3) for one in alike]
        shown = f"median {median(back_s):.2f} s, worst {max(back_s):.2f} s of {len(back_s)}"
        report.add(f"{prefix}_{kind}_back_s_max", max(back_s), "  clients of the endpoint, back after", shown)
        report.figures[f"{prefix}_{kind}_back_s_each"] = back_s
    _tell_gaps(f"{prefix}_survivor", "all faults: clients of the others", every, report)


def _tell_gaps(name: str, label: str, found: list[Call], report: Report) -> None:
    longest_ms, usual_ms = 1e3 * longest_s(found), 1e3 * quantile_s(found, 0.999)
    shown = f"longest {longest_ms:.0f} ms, p99.9 {usual_ms:.0f} ms of {len(found):,}, {unanswered(found)} errors"
    report.add(f"{name}_gap_ms_max", round(longest_ms, 1), label, shown)
    report.figures[f"{name}_gap_ms_p999"] = round(usual_ms, 1)
    report.figures[f"{name}_errors"] = unanswered(found)


async def all_serve(cluster: LocalCluster, serving: Serving) -> None:
    """Return once everybody serves who is to serve, and the others could take over. Raises TimeoutError."""

    async def there() -> bool:
        healths = (await cluster.healths()).values()
        if serving == "one":
            return all(health is not None and health.ready for health in healths)
        servers = await cluster.balancer.servers()
        return all(health is not None and health.active for health in healths) and all(
            one.up for one in servers.values()
        )

    async with asyncio.timeout(ALL_SERVE_MAX_S):
        await until(there)
