"""Spark jobs that are killed, repeated, and run while the active changes: the same output."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import pytest

from replica.local.cluster import LocalCluster
from replica.local.process import descendants
from tests.closing import ended
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.tools import audited_by_spark, notary
from tests.faults.under_load import under_load
from tests.faults.witness import witness

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(1_200),
    pytest.mark.asyncio(loop_scope="session"),
]

JOB_MAX_S = 400.0
ARCHIVE = ("archive", "run", "--engine", "spark")  # without a database it would need none, and be over too soon
SAME = ("outcomes", "voids", "epochs", "completions", "counts")  # of an audit, whenever it is made


@pytest.mark.scenario("F25", "the archive job is killed half way, run again, and run during a fail-over")
async def test_a_job_that_dies_leaves_nothing_wrong(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: each record once, despite kills. Method: SIGKILL the job; again, with the active; compare with an index."""
    async with under_load(cluster, scenario, singles=4, batches=1) as load, witness(cluster, scenario) as spender:
        await spender.spend(200)
        await killed_half_way(cluster)
        scenario.fired("archive job killed while it ran")
        running = asyncio.create_task(notary(cluster, *ARCHIVE, timeout_s=JOB_MAX_S))
        await asyncio.sleep(3.0)
        assert not running.done()
        active = await cluster.wait_for_active()
        active.kill_group()
        scenario.fired(f"{active.name} killed while the archive job ran")
        code, printed = await running
        assert code == 0, printed
        await wait_for_return(cluster)
        assert load.successes_ns()
    code, printed = await notary(cluster, "archive", "verify", timeout_s=JOB_MAX_S)
    assert code == 0, printed
    code, printed = await notary(cluster, *ARCHIVE, timeout_s=JOB_MAX_S)  # the rest
    assert code == 0, printed
    passive = (await cluster.passives())[0]
    await passive.stop()
    code, printed = await notary(
        cluster, "index", "diff", "--name", passive.name, "--log", "archive", timeout_s=JOB_MAX_S
    )
    passive.start()
    assert code == 0, printed
    first, second = await audited_by_spark(cluster), await audited_by_spark(cluster)
    same = SAME if cluster.embedded else (*SAME, "end_offset")  # the holder of a lease goes on showing life
    assert {name: first[name] for name in same} == {name: second[name] for name in same}


async def killed_half_way(cluster: LocalCluster) -> None:
    """Start the archive job and kill it with all its processes, once Spark's are at work."""
    argv = [sys.executable, "-m", "replica.cli", *ARCHIVE, "--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(120.0):
        while len(descendants(process.pid)) < 2 and process.returncode is None:  # the JVM, and then its workers
            await asyncio.sleep(0.05)
    assert process.returncode is None, "it ended before it could be killed"
    for pid in (process.pid, *descendants(process.pid)):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await ended(process)
    assert process.returncode == -signal.SIGKILL
