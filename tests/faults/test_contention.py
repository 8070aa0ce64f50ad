"""Clients of three processes contend for the same few states, while the active is killed, frozen and replaced.

`notary check` reads their histories beside the log. Porcupine reads them alone: does any order explain them?
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from time import monotonic_ns

import pytest

from replica.local.cluster import LocalCluster
from tests.faults.recorder import Scenario
from tests.faults.scenarios import FREEZE_GROUP, KILL_GROUP, fail_over, freeze_beyond_lease
from tests.faults.tools import hand_over_to, the_protocol_allows
from tests.faults.under_load import loaded, under_load
from tests.worlds.porcupine import IS_BUILT

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]

OTHERS = 2
FEW = {"singles": 6, "batches": 1, "batch": 10}


@pytest.mark.thorough  # the judge's own tests, and the histories of test_fail_over.py, are the quick proof
@pytest.mark.scenario("F1", "the active is killed, frozen and replaced while clients contend for the same states")
async def test_clients_that_contend_see_one_order(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: some order of all attempts explains every answer. Method: SIGKILL, SIGSTOP beyond the lease with a client
    of the frozen one, `notary switchover`, under clients of the same states; both checkers."""
    contended = monotonic_ns()
    async with under_load(cluster, scenario, contended=contended, **FEW) as load, AsyncExitStack() as others:
        for _ in range(OTHERS):
            await others.enter_async_context(loaded(cluster, scenario, contended=contended, **FEW))
        killed = await fail_over(cluster, KILL_GROUP)
        scenario.fired(f"{killed.fallen} killed, {killed.successor} took over")
        frozen, direct = await freeze_beyond_lease(cluster, FREEZE_GROUP, f"{load.name}-direct", contended=contended)
        scenario.add_history(direct.history)
        scenario.fired(f"{frozen.fallen} frozen, {frozen.successor} took over")
        passive = (await cluster.passives())[0]
        await hand_over_to(cluster, passive)
        scenario.fired(f"{passive.name} was handed the service")
    the_protocol_allows(cluster)
    answers = scenario.summary["answers"]
    assert all(verdict.linearisable for verdict in scenario.judged) and bool(scenario.judged) == IS_BUILT
    assert answers["NOTARISED"] > 100 and answers["STATE_CONFLICT"] > answers["NOTARISED"]
