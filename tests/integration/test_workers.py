"""Three replicas that all serve, on real servers: their holder of the lock is killed, and the others' clients go on."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from pathlib import Path

import aiohttp
import pytest

from ledger_api.client import NotaryClient, Result, RetryPolicy
from replica.checker.history import HistoryWriter
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.recording import RecordingClient
from replica.local.replica import ReplicaProcess
from replica.notary.answers import Notarised, Refused
from replica.notary.requests import Submission, TimeWindow, state_ref
from tests.ends import ends_by_design, guarded
from tests.integration.feed_reader import HttpFollower, read_all
from tests.integration.test_cluster import World
from tests.integration.test_embedded_profile import printed
from tests.log_kind import is_embedded, log_of
from tests.promises import promised
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.slow]

WAIT_S = 90.0  # for what is no promise: the machine may be busy
_numbers = count(1)
ONE_TRY = RetryPolicy(deadline_s=0.0, attempt_max_s=10.0)


@pytest.fixture
async def cluster(servers_folder: Path, request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    """Replicas that all serve, over a log of their own: each test's history is to be the whole of it."""
    settings = ClusterSettings(
        folder=servers_folder / f"workers-{next(_numbers)}",
        parties=2,
        log=log_of(request.config),
        embedded=is_embedded(request.config),
        further={"serving": "all"},
    )
    async with guarded(LocalCluster(settings)) as cluster:
        await eventually(lambda: all_serve(cluster), timeout_s=WAIT_S)
        yield cluster


async def all_serve(cluster: LocalCluster) -> bool:
    healths = (await cluster.healths()).values()
    return all(health is not None and health.active and health.serving == "all" for health in healths)


def fresh(cluster: LocalCluster, state: bytes | None = None) -> Submission:
    return cluster.parties[0].sign(os.urandom(32), [state_ref(state or os.urandom(32), 0)])


@asynccontextmanager
async def all_ask(
    cluster: LocalCluster, holder: ReplicaProcess, history: Path
) -> AsyncIterator[Mapping[str, RecordingClient]]:
    """While the block runs, two clients at each replica but the holder, and one there, ask without pause, one try each.

    Yields the others' clients. Once all serve again: none of the others' answers was an error, the promises hold, and
    `notary check` finds nothing. Raises PromiseBroken.
    """
    async with AsyncExitStack() as stack:
        stream = stack.enter_context(history.open("wb"))
        writer = HistoryWriter(stream)
        clients = {
            name: await stack.enter_async_context(
                RecordingClient(f"http://{one.address.host}:{one.address.api_port}", writer, name, policy=ONE_TRY)
            )
            for name, one in cluster.replicas.items()
        }
        others = {name: client for name, client in clients.items() if name != holder.name}
        stopping = asyncio.Event()
        answers: list[Result] = []

        async def keep_asking(client: RecordingClient, found: list[Result]) -> None:
            while not stopping.is_set():
                found.append(await client.submit(fresh(cluster)))
                if not isinstance(found[-1], Notarised):
                    await asyncio.sleep(0.05)  # nobody listens there

        async def come(further: int) -> None:
            until = len(answers) + further
            async with asyncio.timeout(WAIT_S):
                while len(answers) < until:
                    await asyncio.sleep(0.02)

        async with asyncio.TaskGroup() as group:
            for client in [*others.values()] * 2:
                group.create_task(keep_asking(client, answers))
            group.create_task(keep_asking(clients[holder.name], []))
            try:
                await come(100)
                yield others
                await come(100)
            finally:
                stopping.set()
        failed = [answer for answer in answers if not isinstance(answer, Notarised)]
        promised(failed == [], f"{len(failed)} of {len(answers)} answers, the first {failed[:1]}")
        await eventually(lambda: all_serve(cluster), timeout_s=WAIT_S)
        await World(cluster, next(iter(others.values())), history, stream).check()


async def one_of_two_is_notarised(cluster: LocalCluster, clients: Mapping[str, RecordingClient]) -> None:
    """One state is asked for at two replicas at once."""
    state = os.urandom(32)
    rivals = await asyncio.gather(*(client.submit(fresh(cluster, state)) for client in clients.values()))
    promised([isinstance(answer, Notarised) for answer in rivals].count(True) == 1, rivals)


def kill_core(_: LocalCluster, holder: ReplicaProcess) -> None:
    holder.kill_core()


def kill_machine(cluster: LocalCluster, holder: ReplicaProcess) -> None:
    cluster.kill(holder.name)


@pytest.mark.parametrize(
    "kill",
    [
        kill_core,
        pytest.param(kill_machine, marks=pytest.mark.only_embedded("nothing of the log is beside a replica")),
    ],
)
async def test_clients_of_others_see_nothing_of_a_holder_that_is_killed(
    cluster: LocalCluster, tmp_path: Path, kill: Callable[[LocalCluster, ReplicaProcess], None]
) -> None:
    """Goal: no error and no double answer. Method: the holder's core is killed; or all of it, and the log node beside
    it, which an active keeps in the log's lead. One state is asked for at two replicas before it is back."""
    holder = await cluster.wait_for_active()
    with ends_by_design(holder):
        async with all_ask(cluster, holder, tmp_path / "history.jsonl") as others:
            kill(cluster, holder)
            await eventually(lambda: leads_another(cluster, holder.name), timeout_s=WAIT_S)
            await one_of_two_is_notarised(cluster, others)


async def test_clients_of_others_see_nothing_of_a_holder_that_is_frozen(cluster: LocalCluster, tmp_path: Path) -> None:
    """Goal: as with a kill; and whoever thaws serves on, and holds nothing. Method: the holder stands still until
    another one leads; one state is asked for at the others; then it thaws."""
    holder = await cluster.wait_for_active()
    async with all_ask(cluster, holder, tmp_path / "history.jsonl") as others:
        holder.freeze_group()
        try:
            await eventually(lambda: leads_another(cluster, holder.name), timeout_s=WAIT_S)
            await one_of_two_is_notarised(cluster, others)
        finally:
            holder.thaw()
    assert await leads_another(cluster, holder.name)


async def test_calls_that_waited_for_a_frozen_worker_are_judged_when_it_thaws(cluster: LocalCluster) -> None:
    """Goal: neither a spent state nor a time that is over comes back. Method: a replica without the lock stands still
    with two calls; one state is spent elsewhere meanwhile, the other's time window ends; then it thaws, and takes them
    or says that it did not, whereupon they are sent again."""
    frozen, other = (await cluster.passives())[0], await cluster.active()
    assert other is not None
    (late, quick) = (f"http://{one.address.host}:{one.address.api_port}" for one in (frozen, other))
    patient = RetryPolicy(deadline_s=30.0, attempt_max_s=30.0)
    async with NotaryClient(late, policy=patient) as slow, NotaryClient(quick) as fast:
        assert isinstance(await slow.submit(fresh(cluster)), Notarised)  # the connection is open
        state, party = os.urandom(32), cluster.parties[0]
        until_us = int((time.time() + 1.0) * 1e6)
        timed = party.sign(os.urandom(32), [state_ref(os.urandom(32), 0)], window=TimeWindow(None, until_us))
        frozen.freeze_group()
        try:
            calls = [asyncio.create_task(slow.submit(one)) for one in (fresh(cluster, state), timed)]
            await asyncio.sleep(0.5)
            assert isinstance(await fast.submit(fresh(cluster, state)), Notarised)
            await asyncio.sleep(1.5)
            assert not any(call.done() for call in calls)
        finally:
            frozen.thaw()
        spent, too_late = await asyncio.gather(*calls)
    assert isinstance(spent, Refused), spent
    assert isinstance(too_late, Refused), too_late
    assert (spent.code, too_late.code) == ("STATE_CONFLICT", "TIME_WINDOW_CLOSED")


async def test_each_replica_serves_the_same_completions_across_a_switchover(cluster: LocalCluster) -> None:
    """Goal: the same lines at the same offsets wherever they are read, and the holder's duties move without a reader or
    a submitter noticing. Method: a follower and a client with one try at each replica; `notary switchover` twice
    meanwhile. No stream is opened a second time; every replica's pages are compared with every stream, byte by byte."""
    endpoints = {name: f"http://{one.address.host}:{one.address.api_port}" for name, one in cluster.replicas.items()}
    before = len(await read_all(next(iter(endpoints.values()))))
    followers = {name: HttpFollower(endpoint) for name, endpoint in endpoints.items()}
    stopping = asyncio.Event()

    async def keep_asking(endpoint: str) -> list[Result]:
        answers: list[Result] = []
        async with NotaryClient(endpoint, policy=ONE_TRY) as client:
            while not stopping.is_set():
                answers.append(await client.submit(fresh(cluster)))
        return answers

    for follower in followers.values():
        follower.start()
    asking = [asyncio.create_task(keep_asking(endpoint)) for endpoint in endpoints.values()]
    try:
        holders = []
        for _ in range(2):
            await asyncio.sleep(1.0)
            holders.append(await cluster.wait_for_active())
            await printed(cluster, "switchover")
        await asyncio.sleep(1.0)
        stopping.set()
        answers = [answer for found in await asyncio.gather(*asking) for answer in found]
        assert None not in holders
        assert holders[0] is not holders[1]
        failed = [answer for answer in answers if not isinstance(answer, Notarised)]
        promised(failed == [], f"{len(failed)} of {len(answers)} answers, the first {failed[:1]}")
        all_of_them = before + len(answers)

        async def all_read() -> bool:
            return all(len(follower.lines) >= all_of_them for follower in followers.values())

        await eventually(all_read, timeout_s=WAIT_S)
        pages = [await read_all(endpoint) for endpoint in endpoints.values()]
        assert len(pages[0]) == all_of_them > 100
        assert all(found == pages[0] for found in [*pages, *(follower.lines for follower in followers.values())])
        assert {name: follower.streams for name, follower in followers.items()} == dict.fromkeys(endpoints, 1)
    finally:
        stopping.set()
        await asyncio.gather(*asking, *(follower.stop() for follower in followers.values()))


async def test_each_replica_says_that_it_serves(cluster: LocalCluster) -> None:
    """Goal: whoever looks at any of them sees what it does. Method: the metrics of each."""
    async with aiohttp.ClientSession() as session:
        for one in cluster.replicas.values():
            async with session.get(f"http://{one.address.host}:{one.address.health_port}/metrics") as answer:
                shown = await answer.text()
            for metric in ("notary_serving 1.0", "notary_all_serve 1.0", "notary_in_flight_submissions 0.0"):
                assert f"\n{metric}\n" in shown, (one.name, metric)
        assert shown.count("\nnotary_in_flight_submissions ") == 1


@pytest.mark.not_on("raft", "a release would end the lease, and the next claim lets service go on")
async def test_service_is_paused_everywhere_and_resumed(cluster: LocalCluster) -> None:
    """Goal: `notary pause --service` returns once nobody serves, and nothing counts until `notary resume --service`,
    whoever holds the lock. Method: clients ask at each replica throughout; during the pause the holder is killed, and
    what they are told is asked for through HAProxy as well."""
    endpoints = {name: f"http://{one.address.host}:{one.address.api_port}" for name, one in cluster.replicas.items()}
    stopping = asyncio.Event()
    told: set[str] = set()

    async def keep_asking(endpoint: str) -> None:
        async with NotaryClient(endpoint, policy=ONE_TRY) as client:
            while not stopping.is_set():
                answer = await client.submit(fresh(cluster))
                told.add("notarised" if isinstance(answer, Notarised) else getattr(answer, "code", repr(answer)))
                await asyncio.sleep(0.01)

    asking = [asyncio.create_task(keep_asking(endpoint)) for endpoint in endpoints.values()]
    try:
        await asyncio.sleep(1.0)
        assert await commanded(cluster, "pause", "--service", "a drill") == 0
        assert told <= {"notarised", "NOT_ACTIVE", "SERVICE_PAUSED", "OUTCOME_UNKNOWN"}
        told.clear()
        await asyncio.sleep(1.0)
        assert told == {"SERVICE_PAUSED"}
        healths = (await cluster.healths()).values()
        assert {(one.service_paused, one.not_serving, one.active) for one in healths if one} == {
            (True, "paused", False)
        }
        async with NotaryClient(cluster.endpoint, policy=ONE_TRY) as balanced:
            answer = await balanced.submit(fresh(cluster))
        assert getattr(answer, "code", None) == "SERVICE_PAUSED", answer
        holder = await cluster.active()
        assert holder is not None
        with ends_by_design(holder):
            holder.kill_core()
            await eventually(lambda: leads_another(cluster, holder.name), timeout_s=30.0)
            await asyncio.sleep(2.0)
            assert "notarised" not in told
            assert await commanded(cluster, "resume") == 2  # that would end a pause of fail-over
            await eventually(lambda: all_paused(cluster), timeout_s=40.0)
        assert await commanded(cluster, "resume", "--service") == 0
        await eventually(lambda: all_serve(cluster), timeout_s=30.0)
        told.clear()
        await asyncio.sleep(1.0)
        assert told == {"notarised"}
    finally:
        stopping.set()
        await asyncio.gather(*asking)


async def commanded(cluster: LocalCluster, *words: str) -> int | None:
    """The exit code of a command."""
    argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(cluster.config_path)]
    return await (await asyncio.create_subprocess_exec(*argv)).wait()


async def all_paused(cluster: LocalCluster) -> bool:
    healths = (await cluster.healths()).values()
    return all(health is not None and health.service_paused for health in healths)


async def leads_another(cluster: LocalCluster, former: str) -> bool:
    found = await cluster.active()
    return found is not None and found.name != former
