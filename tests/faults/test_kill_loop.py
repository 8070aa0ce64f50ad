"""The active replica is killed again and again while applications use the client library, without their notice."""

from __future__ import annotations

import asyncio

import pytest

from replica.local.cluster import LocalCluster
from replica.log.open import open_log
from tests.faults.applications import PAGE, Applications, check, ledger_end, page_behind
from tests.faults.audit import audit, wait_until_published
from tests.faults.load import client_load
from tests.faults.scenarios import KILL_GROUP, fail_over, wait_for_return
from tests.log_kind import serving_of

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,  # CI's: test_accepted_and_killed.py
    pytest.mark.timeout(1_800),
    pytest.mark.asyncio(loop_scope="session"),
]

KILLS = 20
LOOP_MAX_S = 60.0  # for each kill, on a machine that is busy with other things
STREAMS_CUT = 0.1  # of the kills, at least, where three replicas serve: about one in three meets the stream's own


async def test_applications_do_not_notice_that_actives_are_killed(
    cluster: LocalCluster, request: pytest.FixtureRequest
) -> None:
    """Goal: each accepted submission completes once, each command is accepted once at most, offsets are dense, the
    same bytes are served by everybody, streams have no gap and no duplicate, nothing surfaces. Method: SIGKILL the
    active and all its front ends every few seconds; calls, a stream, asynchronous submissions and a follower of the
    completions go on through HAProxy; double spends by another client; an audit of all answers. Where all replicas
    serve, the one that is killed holds the lock, and the stream is cut only if it was connected to that one."""
    await wait_for_return(cluster)
    await wait_until_published(cluster)
    log = open_log(cluster.config.log.settings)
    first_offset = await log.end_offset()
    await log.close()
    after = await ledger_end(cluster.endpoint)
    applications = Applications(cluster.endpoint, cluster.parties[0], after)
    spenders = client_load(cluster, request.node.name, singles=6, batches=1)
    applications.start()
    spenders.start()
    try:
        async with asyncio.timeout(LOOP_MAX_S * (KILLS + 1)):
            for _ in range(KILLS):
                await kill_once(cluster)
            await spenders.stop()
            await applications.stop()
            await wait_until_published(cluster)
            end = await applications.follow_to_end()
    finally:
        await spenders.stop()
    check(applications, after, end)
    assert applications.connections_count > (STREAMS_CUT * KILLS if serving_of(request.config) else KILLS)
    assert len(applications.answers) > 100 * KILLS and len(applications.accepted) > 10 * KILLS
    await audit(cluster, [spenders.history], first_offset, partial=True)


async def kill_once(cluster: LocalCluster) -> None:
    """Kill the active; its successor serves the same bytes."""
    end = await ledger_end(cluster.endpoint)
    after, count = max(0, end - PAGE), min(end, PAGE)
    before = await page_behind(cluster.endpoint, after, count) if count else []
    take_over = await fail_over(cluster, KILL_GROUP)
    assert take_over.successor != take_over.fallen
    assert (await page_behind(cluster.endpoint, after, count) if count else []) == before
