"""All power is lost, or a rack's: every disk loses what was not synced, and no answer is lost.

Every cut proves itself on every disk: see `tests/lossy_disk.py`.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

import psycopg
import pytest

from tests.ends import ends_by_design
from tests.faults.lab.lab import BALANCER
from tests.faults.lab.power import LabOnDisks, machines_with_disks
from tests.faults.lab.scene import Scene, scene
from tests.faults.load import LoadBroken
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.tools import Words

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

UNSYNCED_S = 6.0  # of load between the moment when everything is on disk and the cut
GIVE_UP_S = 120  # of clients: the outage contains the start of every server
RETURN_GOAL_S = 20.0


@pytest.mark.scenario("F38", "all power is lost; from its return", outage_goal_s=RETURN_GOAL_S)
async def test_no_answer_is_lost_with_all_power(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal: every answer outlives the cut, and service returns by itself. Method: cut all disks under load, start."""
    async with scene(lab, scenario, give_up_s=GIVE_UP_S) as now:
        await now.active_replica()
        await all_power_lost(lab, now)


@pytest.mark.not_on("embedded", "completions are published in each replica's own ledger")
@pytest.mark.scenario(
    "F39", "all power is lost while nothing can be published; from its return", outage_goal_s=RETURN_GOAL_S
)
async def test_no_unpublished_answer_is_lost_with_all_power(lab: LabOnDisks, scenario: Scenario) -> None:
    """Goal: answers do not rest on the published position. Method: lock the table of completions, as a long DDL
    statement does, under load; cut all disks."""
    async with scene(lab, scenario, give_up_s=GIVE_UP_S) as now:
        await now.active_replica()
        await all_power_lost(lab, now, held=True)


async def all_power_lost(lab: LabOnDisks, now: Scene, *, held: bool = False, unsynced_s: float = UNSYNCED_S) -> None:
    """Cut the whole site's power under load; wait until clients are served again."""
    machines = [*machines_with_disks(lab.log_kind, lab.embedded), BALANCER]
    async with publication_held_up(lab) if held else nullcontext():
        lab.disks.arm()
        await asyncio.sleep(unsynced_s)
        await lab.lose_power(*machines)
    with ends_by_design(*lab.replicas.values()):  # a replica that starts before its servers may end, and is restarted
        words = [Words(replica) for replica in lab.replicas.values()]
        back_ns, lost = await lab.return_power(*machines)
        now.scenario.fired(lost)
        try:
            await now.served_since(back_ns)
        except LoadBroken as error:
            raise LoadBroken(f"{error}; replicas: {codes_in(words)}") from error
        now.scenario.served_again(now.load, back_ns)
        await wait_for_return(lab)


def codes_in(words: list[Words]) -> dict[str, int]:
    """How often replicas have named each code."""
    return Counter(code for one in words for code in re.findall(r'"code": "([A-Z_]+)"', one.text()))


@asynccontextmanager
async def publication_held_up(lab: LabOnDisks) -> AsyncIterator[None]:
    """Nothing is written to the table of completions while the block runs, as during a long change of the table."""
    connection = await psycopg.AsyncConnection.connect(lab.owner_dsn())
    try:
        await connection.execute("LOCK TABLE completion IN SHARE MODE")
        yield
    finally:
        await connection.close()
