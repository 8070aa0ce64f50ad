"""The active replica is killed, frozen or stopped under load: nothing answered is lost, changed or given twice.

Times are asserted loosely here, because other things run on the machine; `make bench` measures them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from replica.local.cluster import LocalCluster
from replica.log.kafka import KafkaLog
from tests.faults.audit import audit
from tests.faults.load import ClientLoad, client_load
from tests.faults.scenarios import (
    FREEZE_CORE,
    FREEZE_GROUP,
    KILL_CORE,
    KILL_GROUP,
    STOP,
    Fault,
    fail_over,
    freeze_beyond_lease,
    wait_for_return,
)

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

OUTAGE_MAX_S = 10.0


@asynccontextmanager
async def loaded(cluster: LocalCluster, process: str) -> AsyncIterator[tuple[ClientLoad, int]]:
    """A client through HAProxy while the block runs, and the log's end before it began."""
    await wait_for_return(cluster)
    log = KafkaLog(cluster.config.kafka)
    first_offset = await log.end_offset()
    await log.close()
    load = client_load(cluster, process)
    load.start()
    try:
        yield load, first_offset
    finally:
        await load.stop()


@pytest.mark.parametrize(
    "fault", [pytest.param(KILL_GROUP, id="group"), pytest.param(KILL_CORE, id="core"), pytest.param(STOP, id="stop")]
)
async def test_a_peer_takes_over_from_an_active_that_ends(
    cluster: LocalCluster, fault: Fault, request: pytest.FixtureRequest
) -> None:
    """Goal: no answer is lost when the active ends. Method: SIGKILL or SIGTERM under load, audit of all answers."""
    async with loaded(cluster, request.node.name) as (load, first_offset):
        take_over = await fail_over(cluster, fault)
    summary = await audit(cluster, [load.history], first_offset)
    assert take_over.successor != take_over.fallen
    assert take_over.outage(load).outage_s < OUTAGE_MAX_S
    assert summary["answers"]["NOTARISED"] > 100  # a run without load would prove nothing


@pytest.mark.parametrize("fault", [pytest.param(FREEZE_CORE, id="core"), pytest.param(FREEZE_GROUP, id="group")])
async def test_a_frozen_active_says_nothing_once_it_was_replaced(
    cluster: LocalCluster, fault: Fault, request: pytest.FixtureRequest
) -> None:
    """Goal: a zombie gives no answer behind the new barrier. Method: SIGSTOP beyond the lease, SIGCONT, audit."""
    name = request.node.name
    async with loaded(cluster, name) as (load, first_offset):
        take_over, direct = await freeze_beyond_lease(cluster, fault, f"{name}-direct")
    summary = await audit(cluster, [load.history, direct.history], first_offset)
    assert take_over.zombie_claims == 0
    assert take_over.outage(load).outage_s < cluster.config.election.lease_s + OUTAGE_MAX_S
    assert summary["answers"]["NOTARISED"] > 100
