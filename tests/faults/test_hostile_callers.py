"""Hostile callers, all kinds at once, while honest ones go on: they harm no caller but themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial

import pytest

from replica.local.cluster import LocalCluster
from replica.local.haproxy import HaproxyServer
from replica.notary.own_process import raise_open_files
from tests.faults.greedy import ABOUT, FOLLOW, NOTHING, SUBMISSIONS, Place, held, repeated, serves_another
from tests.faults.hostile import EVERY_ATTACK, Rounds, Target, Watched, besieged, hostile_notes
from tests.faults.recorder import Scenario
from tests.faults.test_system import epoch_of
from tests.faults.under_load import under_load
from tests.faults.witness import witness
from tests.promises import promised
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600), pytest.mark.asyncio(loop_scope="session")]

MIB = 2**20
BOUNDS = {"page_max_bytes": 4 * MIB, "answers_max_bytes": 12 * MIB, "bodies_max_bytes": 16 * MIB}
FURTHER = {"api": BOUNDS}
ROOM_BYTES = 96 * MIB  # for what Python and the allocator keep in addition to the bounds
CORE_ROOM_BYTES = 256 * MIB  # the index's buffers grow with the honest load
CONFLICTS, STATES = 8, 9_999  # a page of them all would have 15 MB, and take ten times that to make
ROUND_MAX_S = 120.0


@pytest.mark.thorough
@pytest.mark.scenario("F33", "hostile callers of every kind at all replicas, and on the lock's channel")
@pytest.mark.parametrize(
    "duration_s", [pytest.param(8.0, marks=pytest.mark.short), pytest.param(25.0, marks=pytest.mark.slow)]
)
async def test_hostile_callers_harm_nobody_else(cluster: LocalCluster, scenario: Scenario, duration_s: float) -> None:
    """Goal: no process ends, no epoch changes, memory stays within its bounds, honest answers are right. Method: all at
    once for a while: no handshakes, no JSON, half a connection, the largest pages, noise for the lock; under load."""
    async with under_load(cluster, scenario, singles=8, batches=1) as load:
        async with witness(cluster, scenario) as spender:
            after = (await cluster.config.ledgers().status()).ledger_end
            state = await spender.collide(CONFLICTS, STATES)
            await spender.spend(50)
            before = await epoch_of(cluster), await cluster.wait_for_active()
            replicas = list(cluster.replicas.values())
            watched = [Watched(replica) for replica in replicas]
            party, page = cluster.parties[1], BOUNDS["page_max_bytes"]
            targets = [Target(replica.address, party, after, state, page) for replica in replicas]
            async with hostile_notes(cluster) as notes, besieged(EVERY_ATTACK, targets) as rounds:
                successes = len(load.successes_ns())
                await asyncio.sleep(duration_s)
                await eventually(partial(each_was_made, rounds, targets), ROUND_MAX_S)
                await spender.spend(50)
                honest = len(load.successes_ns()) - successes
            await spender.spend_again()
        front_end_max = BOUNDS["answers_max_bytes"] + BOUNDS["bodies_max_bytes"] + ROOM_BYTES
        grown = [one.check(CORE_ROOM_BYTES, front_end_max) for one in watched]
        now = await epoch_of(cluster), await cluster.wait_for_active()
        promised(now == before, f"epoch and active were {before}, are {now}")
        for attack in EVERY_ATTACK:
            made = [rounds[attack.__name__, target.address.name] for target in targets]
            scenario.fired(f"{attack.__name__}: {sum(made)} rounds")
        scenario.fired(f"{len(notes)} hostile notes")
        assert honest > 50, honest
        print(f"{honest} honest answers meanwhile; {'; '.join(grown)}")
    assert load.given_up() == 0


async def each_was_made(rounds: Rounds, targets: Sequence[Target]) -> bool:
    """Whether there was a whole round of every kind at every replica."""
    return all(rounds[attack.__name__, target.address.name] for attack in EVERY_ATTACK for target in targets)


@pytest.mark.scenario("F33", "one caller takes all it gets: silent connections, idle streams, pages that match nothing")
@pytest.mark.parametrize(
    ("connections", "streams"),
    [pytest.param(1_000, 300, marks=pytest.mark.slow), pytest.param(4_100, 593, marks=pytest.mark.slow)],
)
async def test_a_second_caller_is_served_whatever_the_first_one_takes(
    cluster: LocalCluster, scenario: Scenario, connections: int, streams: int
) -> None:
    """Goal: no caller takes what belongs to all. Method: one address holds what it gets, at a front end and through
    HAProxy; each time another address asks, and honest callers go on."""
    raise_open_files()
    async with under_load(cluster, scenario, singles=4, batches=1) as load:
        active = (await cluster.wait_for_active()).address
        end = (await cluster.config.ledgers().status()).ledger_end
        places = [Place(active.host, active.api_port)]
        if isinstance(cluster.balancer, HaproxyServer):
            endpoint = cluster.config.endpoint
            places.append(Place(endpoint.host, endpoint.port))
        for place in places:
            for count, raw in ((connections, b""), (streams, FOLLOW % end), (streams, SUBMISSIONS)):
                async with held(place, count, raw) as statuses:
                    await serves_another(place, ABOUT, 200, 10, scenario.fired)
                    await serves_another(place, FOLLOW % end, 200, 3, scenario.fired)
                    await serves_another(place, SUBMISSIONS, 101, 3, scenario.fired)
                    scenario.fired(f"{count} connections held at port {place.port}: {dict(statuses)}")
            async with repeated(place, 8, NOTHING) as statuses:
                await eventually(partial(is_refused, statuses), ROUND_MAX_S)
                await serves_another(place, FOLLOW % end, 200, 10, scenario.fired)
                scenario.fired(f"pages that match nothing at port {place.port}: {dict(statuses)}")
    assert load.given_up() == 0


async def is_refused(statuses: Counter[int]) -> bool:
    """Whether the greedy caller has used its share of rows, or has made many calls without that."""
    return statuses[429] > 0 or statuses[200] > 30
