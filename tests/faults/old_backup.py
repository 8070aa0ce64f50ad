"""A backup of the database that is restored when the log has gone on for long."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from time import monotonic_ns

from replica.local.cluster import LocalCluster
from replica.local.participant import DATABASE
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from replica.store.facts import StoreStatus
from replica.store.postgres.status import read_status
from tests.bench.filler import fill_log, filling
from tests.faults.dumps import dump, restore
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.tools import start_replicas, stop_replicas
from tests.faults.under_load import end_of_log, loaded
from tests.faults.witness import witness

TOGETHER = 500  # records in one append
BACKLOG = 60_000  # requests that the log has and the backup has not; more than the index reads at once
CATCH_UP_GOAL_S = 20.0  # to start three processes, to read the backlog three times, and to publish it once
PATIENCE_S = 120  # of clients who wait for that, on a machine that does other things
LOOK_EVERY_S = 0.02


async def catch_up(cluster: LocalCluster, scenario: Scenario, folder: Path) -> StoreStatus:
    """Dump under load; more answers, and a backlog in the log; restore; serve. What the backup held."""
    await wait_for_return(cluster)
    first_offset = await end_of_log(cluster)
    async with witness(cluster, scenario, PATIENCE_S) as spender:
        async with loaded(cluster, scenario) as load:
            await load.begun()
            await dump(cluster, folder / "notary.dump")
            await spender.spend(200)  # the backup does not contain these
        await stop_replicas(cluster)
        newest = await read_status(cluster.conninfo)
        await fill(cluster, newest.epoch + 1)
        await cluster.postgres.drop_database(DATABASE)
        await restore(cluster, folder / "notary.dump")
        old = await read_status(cluster.conninfo)
        async with loaded(cluster, scenario, give_up_s=PATIENCE_S) as load:
            back_ns = monotonic_ns()
            await start_replicas(cluster)
            await load.begun()
            await asyncio.sleep(2.0)
        scenario.served_again(load, back_ns)
        left = await end_of_log(cluster) - old.published_offset
        scenario.fired(f"a backup, {left:,} records later")
        await spender.spend_again()
    await scenario.audit(cluster, first_offset, partial=True)
    return old


async def fill(cluster: LocalCluster, epoch: int) -> None:
    """Append the backlog, under an activation that no replica has."""
    if not isinstance(cluster.config.log.settings, RaftLogSettings):
        await asyncio.to_thread(fill_log, cluster.kafka_settings, epoch, BACKLOG, 1, cluster.parties[0])
        return
    log = RaftLog(cluster.config.log.settings)
    client = await log.connect(await log.leader())
    records = filling(epoch, BACKLOG, 1, cluster.parties[0])
    while values := list(itertools.islice(records, TOGETHER)):
        await client.append(values)
    await client.close()
    await log.close()
