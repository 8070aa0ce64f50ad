"""Clocks that jump or drift, an fsync that fails once, disks that are slow: no wrong answer, no fail-over storm."""

from __future__ import annotations

import asyncio
import errno
import signal
from pathlib import Path
from time import monotonic, monotonic_ns

import psycopg
import pytest
from psycopg import sql

from replica.local.cluster import LocalCluster
from replica.local.process import ManagedProcess
from tests.ends import ends_by_design
from tests.faults.load import ClientLoad
from tests.faults.preload import Failpoints, WallClock, restart_with
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.tools import Words, assert_same_indexes, hand_over_to
from tests.faults.under_load import under_load
from tests.faults.witness import witness

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

# No worse than silence, lease + 1.5 s: libfaketime makes waits of librdkafka's threads longer, 20 ms became seconds, so
# that reading and the end of a writer are slow for a reason that a wrong clock alone does not give.
WRONG_CLOCK_GOAL_S = 4.5
EPOCHS_OF_A_STORM = 3
SLOW_S = 15.0
PAUSE_S, RUN_S = 0.25, 0.1  # a server that is stopped most of the time, but never for long
COMMITS = 10  # that are timed
COMMIT_DELAY_US = 100_000  # Postgres' own: waited before each flush to the disk


@pytest.mark.scenario("F18", "the active's wall clock jumps or drifts", outage_goal_s=WRONG_CLOCK_GOAL_S)
@pytest.mark.parametrize("change", ["+3600", "-3600", "+0 x1.5"])
async def test_an_active_with_a_wrong_clock_steps_down(
    cluster: LocalCluster, scenario: Scenario, change: str, tmp_path: Path
) -> None:
    """Goal: no stamp from another hour in the log. Method: change the active's clock under load; put it right again."""
    await wait_for_return(cluster)
    ill = (await cluster.passives())[0]
    clock = WallClock(tmp_path)
    await restart_with(cluster, ill, clock.env())
    async with under_load(cluster, scenario) as load:
        await hand_over_to(cluster, ill)
        await asyncio.sleep(2.0)
        words, fault_ns = Words(ill), monotonic_ns()
        clock.set(change)
        await words.come('"event": "stepped_down"')
        successor = await cluster.wait_for_active(other_than=ill.name)
        scenario.fired(f"{change} at {ill.name}: {reason_in(words)}; {successor.name} took over")
        await asyncio.sleep(3.0)
        assert await cluster.active() is successor  # it does not come back with that clock
        scenario.outage(load, fault_ns)
        clock.set("+0 x1")
        await wait_for_return(cluster)
    await restart_with(cluster, ill, {})


def reason_in(words: Words) -> str:
    """Why a replica stepped down, in its own words."""
    line = next(line for line in words.text().splitlines() if '"stepped_down"' in line)
    return line.partition('"reason": "')[2].partition('"')[0]


@pytest.mark.scenario("F15", "fdatasync fails once under the active's index", outage_goal_s=2.0)
async def test_a_failed_fsync_is_not_taken_for_success(
    cluster: LocalCluster, scenario: Scenario, tmp_path: Path
) -> None:
    """Goal: what the disk may have dropped is read again. Method: EIO for one fdatasync, while tables are written."""
    await wait_for_return(cluster)
    ill = (await cluster.passives())[0]
    failpoints = Failpoints(tmp_path)
    await restart_with(cluster, ill, failpoints.env())
    async with under_load(cluster, scenario, singles=4, batches=1) as load, witness(cluster, scenario) as spender:
        await spender.spend(100)
        await hand_over_to(cluster, ill)
        words, fault_ns = Words(ill), monotonic_ns()
        with ends_by_design(ill):
            await failpoints.fail_once(ill, "posix/io/sync/fdatasync", errno.EIO)
            while "Input/output error" not in words.text():  # entries enough for the next table
                await spender.spend(10, inputs=2_000)
            scenario.fired(f"EIO at {ill.name}")
            await cluster.wait_for_active(other_than=ill.name)
            await wait_for_return(cluster)
        assert "index_quarantined" not in words.text()  # what was written before is whole
        scenario.outage(load, fault_ns)
        await spender.spend_again()
    await restart_with(cluster, ill, {})
    await assert_same_indexes(cluster)


@pytest.mark.scenario("F19", "a disk is slow: each commit waits, or a broker stands still most of the time")
@pytest.mark.parametrize(
    "slow",
    [
        pytest.param("database", marks=pytest.mark.not_on("embedded", "there is no database")),
        pytest.param("broker", marks=pytest.mark.only_kafka("there is no broker")),
    ],
)
async def test_a_slow_disk_slows_down_and_no_more(cluster: LocalCluster, scenario: Scenario, slow: str) -> None:
    """Goal: back-pressure, no fail-over storm. Method: slow commits, or a limping broker, for a while, under load.

    Where all serve, no request waits for a database that the log is not in; completions do.
    """
    waits = slow == "broker" or cluster.log_kind == "postgres" or cluster.config.serving == "one"
    async with under_load(cluster, scenario) as load:
        before = await epoch_of(cluster)
        quick = await successes_in(load, SLOW_S / 3)
        if slow == "database":
            await delay_commits(cluster, COMMIT_DELAY_US, siblings=0)
            slowed = await successes_in(load, SLOW_S)
            assert await commit_s(cluster) >= COMMIT_DELAY_US / 1e6, "the fault had no effect"
            await delay_commits(cluster, 0, siblings=5)
        else:
            limping = asyncio.create_task(limp(cluster.kafka.brokers[0].process, SLOW_S))
            slowed = await successes_in(load, SLOW_S)
            await limping
        assert slowed < quick or not waits, "the fault had no effect"
        scenario.fired(f"{slow} slow for {SLOW_S:g} s: {quick:.0f} answers a second before, {slowed:.0f} meanwhile")
        await wait_for_return(cluster)
        assert await epoch_of(cluster) - before < EPOCHS_OF_A_STORM


async def limp(process: ManagedProcess, for_s: float) -> None:
    """Stop a server and let it go on, in turns."""
    until_s = monotonic() + for_s
    try:
        while monotonic() < until_s:
            process.signal_group(signal.SIGSTOP)
            await asyncio.sleep(PAUSE_S)
            process.signal_group(signal.SIGCONT)
            await asyncio.sleep(RUN_S)
    finally:
        process.signal_group(signal.SIGCONT)


async def delay_commits(cluster: LocalCluster, delay_us: int, siblings: int) -> None:
    """Have the server wait before it flushes a commit, if this many others are open: the effect of a slow disk."""
    async with await psycopg.AsyncConnection.connect(cluster.postgres.dsn(), autocommit=True) as connection:
        for statement in (
            sql.SQL("ALTER SYSTEM SET commit_delay = {}").format(sql.Literal(delay_us)),
            sql.SQL("ALTER SYSTEM SET commit_siblings = {}").format(sql.Literal(siblings)),
            sql.SQL("SELECT pg_reload_conf()"),
        ):
            await connection.execute(statement)


async def commit_s(cluster: LocalCluster) -> float:
    """How long the server takes to commit a change: the longest of a few, since others' flushes may take one along."""
    took_s = []
    async with await psycopg.AsyncConnection.connect(cluster.postgres.dsn(), autocommit=True) as connection:
        for _ in range(COMMITS):
            began_s = monotonic()
            await connection.execute("SELECT pg_logical_emit_message(true, 'faults', '')")
            took_s.append(monotonic() - began_s)
    return max(took_s)


async def epoch_of(cluster: LocalCluster) -> int:
    """The newest epoch that any replica knows of."""
    return max(health.epoch for health in (await cluster.healths()).values() if health is not None)


async def successes_in(load: ClientLoad, for_s: float) -> float:
    """Successes a second from now on, for a while."""
    before = len(load.successes_ns())
    await asyncio.sleep(for_s)
    return (len(load.successes_ns()) - before) / for_s
