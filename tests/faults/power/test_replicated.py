"""All power is lost where records are in the brokers' memory only: it is noticed, and the service waits for a person.

The log's end goes back beyond what was answered. Were it not noticed, states that are spent could be spent again.
"""

from __future__ import annotations

import asyncio
from contextlib import nullcontext

import pytest

from replica.local.process import until
from tests.ends import ends_by_design
from tests.faults.lab.lab import BALANCER
from tests.faults.lab.power import LabOnDisks, machines_with_disks
from tests.faults.power.site import codes_in, publication_held_up
from tests.faults.recorder import Scenario
from tests.faults.renewed import Renewed
from tests.faults.scenarios import wait_for_return
from tests.faults.tools import Words
from tests.faults.under_load import loaded
from tests.faults.witness import Witness, witness
from tests.promises import promised

pytestmark = [
    pytest.mark.only_kafka("the other logs are synced, always"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

FURTHER = {"log": {"kafka": {"durability": "replicated"}}}
UNSYNCED_S = 6.0  # far more than answers may run ahead of what is marked
NOTICED_MAX_S = 120.0
GIVE_UP_S = 10  # of clients, which wait in vain
WATCHED_S = 6.0  # after the last replica has ended


@pytest.mark.scenario("F42", "all power is lost, records are in memory: noticed")
async def test_a_lost_tail_is_noticed(lab: LabOnDisks, labs: Renewed[LabOnDisks], scenario: Scenario) -> None:
    """Goal: no replica serves a log that has lost what was answered. Method: cut all disks under load, start."""
    await noticed(lab, scenario)
    await labs.drop()


@pytest.mark.only_all_serve("who serves alone must be able to publish, so nothing unpublished is answered")
@pytest.mark.scenario("F42", "all power is lost, records are in memory and unpublished: noticed")
@pytest.mark.parametrize("spared", [pytest.param(None, id="all disks"), pytest.param("r1", id="one index is spared")])
async def test_a_lost_tail_that_nobody_published_is_noticed(
    lab: LabOnDisks, labs: Renewed[LabOnDisks], scenario: Scenario, spared: str | None
) -> None:
    """Goal: the same without any help of the published position. Method: lock the table of completions meanwhile; cut
    all disks, or all but one replica's, whose peers must not serve without it either."""
    await noticed(lab, scenario, held=True, spared=spared)
    await labs.drop()


async def noticed(lab: LabOnDisks, scenario: Scenario, *, held: bool = False, spared: str | None = None) -> None:
    """Cut the power, and see every replica refuse the log. Raises PromiseBroken when a state was spent twice."""
    await wait_for_return(lab)
    machines = [*machines_with_disks(lab.log_kind, lab.embedded), BALANCER]
    async with witness(lab, scenario) as spender, loaded(lab, scenario, give_up_s=GIVE_UP_S) as load:
        await load.begun()
        async with publication_held_up(lab) if held else nullcontext():
            lab.disks.arm(*(name for name in machines if name not in (spared, BALANCER)))
            await asyncio.sleep(UNSYNCED_S / 2)
            await spender.spend(100)
            await asyncio.sleep(UNSYNCED_S / 2)
            await lab.lose_power(*machines)
        answered = len(load.successes_ns())
        scenario.fired(lab.disks.bring_back())
        words = [Words(replica) for replica in lab.replicas.values()]
        with ends_by_design(*lab.replicas.values()):
            back_ns = await lab.power_on(*machines)
            await nobody_serves(lab, spender, words)
        promised(load.successes_ns()[-1] < back_ns, "a client was answered from a log that has lost answers")
    scenario.fired(f"noticed by all: {codes_in(words)}")
    scenario.checked(answered)


async def nobody_serves(lab: LabOnDisks, spender: Witness, words: list[Words]) -> None:
    """Return once every replica has ended with LOG_TRUNCATED. Raises PromiseBroken when one serves a shorter log."""

    async def decided() -> bool:
        return await lab.active() is not None or not any(one.running for one in lab.replicas.values())

    async with asyncio.timeout(NOTICED_MAX_S):
        await until(decided)
    if any(one.running for one in lab.replicas.values()):
        tried = await spender.spend_again()
        promised(False, f"a replica serves a log that has lost answers; {tried} refused; {codes_in(words)}")
    await asyncio.sleep(WATCHED_S)
    assert not any(one.running for one in lab.replicas.values())
    assert all("LOG_TRUNCATED" in one.text() for one in words), codes_in(words)
