"""Whatever ends between `202 Accepted` and the completion, the completion comes once. Nothing is logged twice.

The database hangs meanwhile, so nothing can be published before the fault.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio

from ledger_api.client import NotaryClient, RetryPolicy
from ledger_api.wire.feed import CompletionDocument
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.process import descendants
from replica.local.replica import ReplicaProcess
from replica.local.topic_reader import read_topic
from replica.notary.answers import Accepted, Notarised
from replica.notary.formats import known
from replica.notary.outcomes import NOTARISED
from replica.notary.records import RequestRecord, decode_record
from replica.notary.requests import Submission, state_ref
from replica.notary.terms import signed_in
from tests.faults.applications import Applications, check, ledger_end
from tests.faults.audit import wait_until_published
from tests.integration.feed_reader import HttpFollower, read_all
from tests.integration.test_database_hangs import frozen
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]

PATIENT = RetryPolicy(deadline_s=60.0)
COMPLETED_MAX_S = 60.0
SUBMISSIONS = 6
UNDER_LOAD_S = 1.5  # between two faults


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(servers_folder: Path) -> AsyncIterator[LocalCluster]:
    """Two replicas with two front ends each. Their ends are what is tested, so nothing guards against them."""
    further = {"election": {"hold_down_s": 0.0}}
    settings = ClusterSettings(folder=servers_folder / "accepted", replicas=2, parties=1, further=further)
    async with LocalCluster(settings) as running:
        for replica in running.replicas.values():
            replica.restart_pause_s = 0.5
        yield running


def kill_front_ends(active: ReplicaProcess) -> None:
    _signal_front_ends(active, signal.SIGKILL)


def restart_front_ends(active: ReplicaProcess) -> None:
    _signal_front_ends(active, signal.SIGTERM)


def _signal_front_ends(active: ReplicaProcess, number: signal.Signals) -> None:
    for pid in descendants(active.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, number)


FAULTS: dict[str, Callable[[ReplicaProcess], None]] = {
    "front ends killed": kill_front_ends,
    "front ends restarted": restart_front_ends,
    "core killed": ReplicaProcess.kill_core,
    "core and front ends killed": ReplicaProcess.kill_group,
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_what_was_accepted_is_completed_once(cluster: LocalCluster, fault: str) -> None:
    """Goal: an accepted submission needs neither the front end nor the core that accepted it. Method: freeze the
    database, have submissions accepted, one by one and together, end what accepted them, thaw. Each has one completion
    in a stream that goes on and in pages read anew; the same submission again is answered from the index."""
    await cluster.wait_until_ready(list(cluster.replicas))
    active = await cluster.wait_for_active()
    follower = HttpFollower(cluster.endpoint)
    follower.offset = await ledger_end(cluster.endpoint)
    follower.start()
    submissions = [fresh(cluster) for _ in range(SUBMISSIONS)]
    ids = {one.submission_id for one in submissions}
    async with NotaryClient(cluster.endpoint, PATIENT) as client:
        await client.submit_async(fresh(cluster))  # connections are open
        with frozen(cluster):
            accepted = await asyncio.gather(*map(client.submit_async, submissions))
            assert not any(decode(line).submission_id in ids for line in follower.lines)
            FAULTS[fault](active)
        offsets = {}
        for one, answer in zip(submissions, accepted, strict=True):
            assert isinstance(answer, Accepted), answer
            offsets[one.submission_id] = answer.log_offset
        again = await asyncio.gather(*map(client.submit, submissions), *map(client.submit_async, submissions))
        for one, answer in zip([*submissions, *submissions], again, strict=True):
            assert isinstance(answer, Notarised), answer
            assert (answer.log_offset, answer.duplicate) == (offsets[one.submission_id], True)
        await eventually(lambda: completed(offsets, follower.lines), COMPLETED_MAX_S)
        last = await client.submit(fresh(cluster))
        assert isinstance(last, Notarised)
    await eventually(lambda: completed({"": last.log_offset}, follower.lines), COMPLETED_MAX_S)
    await follower.stop()
    for lines in (follower.lines, await read_all(cluster.endpoint)):
        found = [one for one in map(decode, lines) if one.submission_id in offsets]
        assert Counter(one.submission_id for one in found) == dict.fromkeys(offsets, 1)
        assert {one.code for one in found} == {NOTARISED}
        assert {one.submission_id: one.log_offset for one in found} == offsets
    logged = await asyncio.to_thread(logged_offsets, cluster, {one.command_id for one in submissions})
    assert logged == {one.command_id: [offsets[one.submission_id]] for one in submissions}


@pytest.mark.thorough
async def test_applications_do_not_notice_that_front_ends_and_cores_end(cluster: LocalCluster) -> None:
    """Goal: the same at any step of a submission. Method: calls, a stream, asynchronous submissions and a follower all
    the time; each fault in turn, twice; one completion for each accepted attempt, one acceptance for each command."""
    await cluster.wait_until_ready(list(cluster.replicas))
    await wait_until_published(cluster)
    after = await ledger_end(cluster.endpoint)
    applications = Applications(cluster.endpoint, cluster.parties[0], after)
    applications.start()
    for fault in [*FAULTS.values()] * 2:
        await asyncio.sleep(UNDER_LOAD_S)
        fault(await cluster.wait_for_active())
    await asyncio.sleep(UNDER_LOAD_S)
    await cluster.wait_for_active()
    await applications.stop()
    await wait_until_published(cluster)
    end = await applications.follow_to_end()
    check(applications, after, end)
    assert len(applications.accepted) > 20
    logged = await asyncio.to_thread(logged_offsets, cluster, set(applications.answers))
    assert logged.keys() == applications.answers.keys()


def fresh(cluster: LocalCluster) -> Submission:
    """A submission that consumes a state of its own, with ids of its own."""
    return cluster.parties[0].sign(os.urandom(32), [state_ref(os.urandom(32), 0)], submission_id=os.urandom(8).hex())


def decode(line: bytes) -> CompletionDocument:
    return msgspec.json.decode(line, type=CompletionDocument)


async def completed(offsets: dict[str, int | None], lines: list[bytes]) -> bool:
    """Whether the records at these offsets have completions among the lines."""
    return set(offsets.values()) <= {decode(line).log_offset for line in lines}


def logged_offsets(cluster: LocalCluster, commands: set[str]) -> dict[str, list[int]]:
    """At which offsets of the log each command is."""
    found: dict[str, list[int]] = {}
    for offset, value in read_topic(cluster.config.log.settings, cluster.topic_id):
        if offset == 0:  # the genesis
            continue
        record = decode_record(value, known().newest.records)
        if isinstance(record, RequestRecord) and (named := signed_in(record).terms.command_id) in commands:
            found.setdefault(named, []).append(offset)
    return found
