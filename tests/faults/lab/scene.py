"""The frame of the lab's scenarios: constant load, every claim to lead watched, every answer audited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from time import monotonic_ns

from replica.local.process import ServerFailed, until
from replica.local.replica import ReplicaProcess
from tests.faults.lab.claims import Claims
from tests.faults.lab.lab import Lab
from tests.faults.load import ClientLoad, LoadBroken
from tests.faults.recorder import Scenario
from tests.faults.scenarios import successor_of, wait_for_return
from tests.faults.under_load import under_load

BEFORE_S = 1.5  # of load before each fault
AFTER_S = 1.5  # and after the service is back, or another replica serves
SUCCESS_MAX_S = 90.0


@dataclass(slots=True)
class Scene:
    """A scenario that runs in the lab, under load."""

    lab: Lab
    scenario: Scenario
    load: ClientLoad
    claims: Claims

    async def active_replica(self) -> ReplicaProcess:
        """The active replica, once applications reach it; then some more load before what comes."""
        active = await self.lab.wait_for_active()
        await asyncio.sleep(BEFORE_S)
        return active

    async def replaced(self, fault: AbstractContextManager[object], active: ReplicaProcess, what: str) -> None:
        """While the fault lasts another replica takes over, and serves; afterwards all are there again."""
        fault_ns = monotonic_ns()
        with fault:
            successor = await successor_of(self.lab, active)
            self.scenario.fired(f"{active.name} {what}, {successor.name} took over")
            await self.served_since(monotonic_ns())
            until_ns = monotonic_ns()
        await wait_for_return(self.lab)
        self.scenario.outage(self.load, fault_ns, until_ns)

    async def served_since(self, moment_ns: int) -> None:
        """Wait until clients have had successes for a while after a moment. Raises LoadBroken when they have none."""

        async def served() -> bool:
            successes_ns = self.load.successes_ns()
            return bool(successes_ns) and successes_ns[-1] > moment_ns

        try:
            await within(SUCCESS_MAX_S, served, "no client had a success")
        except ServerFailed as error:
            raise LoadBroken("an outage without an end") from error
        await asyncio.sleep(AFTER_S)


@asynccontextmanager
async def scene(lab: Lab, scenario: Scenario, *, patient: bool = True, **changes: int) -> AsyncIterator[Scene]:
    """The frame of a scenario. Raises Violation, or AssertionError when a deposed replica claimed to lead.

    `patient`: no outage may last so long that the client library reports it to its application.
    """
    replicas = [one.address for one in lab.replicas.values()]
    async with Claims(replicas) as claims, under_load(lab, scenario, **changes) as load:
        yield Scene(lab, scenario, load, claims)
        await wait_for_return(lab)
    assert not claims.stale, claims.stale[:5]
    assert scenario.summary["answers"]["NOTARISED"] > 100  # a run without load would prove nothing
    if patient:
        assert load.given_up() == 0, "submissions without a final answer after all the patience of the client library"


async def within(limit_s: float, probe: Callable[[], Awaitable[bool]], otherwise: str) -> None:
    """Wait for a condition. Raises ServerFailed naming the one that was not met."""
    try:
        async with asyncio.timeout(limit_s):
            await until(probe)
    except TimeoutError:
        raise ServerFailed(f"{otherwise} within {limit_s:g} s") from None
