"""A scenario's frame: clients keep the notary busy, and afterwards each of their answers is audited."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from replica.local.cluster import LocalCluster
from replica.log.open import open_log
from tests.faults.load import ClientLoad, client_load
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return

_numbers = itertools.count(1)


@asynccontextmanager
async def under_load(cluster: LocalCluster, scenario: Scenario, **changes: int) -> AsyncIterator[ClientLoad]:
    """A client through HAProxy while the block runs; then `notary check` over all answers to clients since.

    `changes` are fields of ClientOrder. All replicas must be there, and are, before the load begins. Raises Violation
    when a promise was broken.
    """
    await wait_for_return(cluster)
    first_offset = await end_of_log(cluster)
    async with loaded(cluster, scenario, **changes) as load:
        await load.begun()
        yield load
    await scenario.audit(cluster, first_offset)


@asynccontextmanager
async def loaded(cluster: LocalCluster, scenario: Scenario, **changes: int) -> AsyncIterator[ClientLoad]:
    """A client through HAProxy while the block runs, also without any replica; its history is for the next audit."""
    load = client_load(cluster, f"load-{next(_numbers)}", None, **changes)
    load.start()
    try:
        yield load
    finally:
        await load.stop()
    scenario.add_history(load.history)


async def end_of_log(cluster: LocalCluster) -> int:
    """The offset that the next record gets.

    A broker that was cut off until now may still take itself for the leader, and answer with an older end. So what the
    replicas have applied counts as well.
    """
    log = open_log(cluster.config.log.settings)
    try:
        end = await log.end_offset()
    finally:
        await log.close()
    applied = [health.applied_offset for health in (await cluster.healths()).values() if health is not None]
    return max([end, *(offset + 1 for offset in applied)])
