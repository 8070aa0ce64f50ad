"""Each runbook is played on a real cluster under load, from its symptom to its verification, as it stands.

A scene makes the trouble, plays the sections of the page in order, and adds what the page's own verification cannot
know. No command of a page may be left out. Those marked slow run with `make runbooks`, all others with every change.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psycopg
import pytest
from deltalake import DeltaTable

from replica.index.rocks import RocksIndex
from replica.local.postgres import find_binaries
from replica.local.replica import ReplicaProcess
from tests.runbooks.conftest import all_well, paused, under_load
from tests.runbooks.stage import Stage
from tests.small_disk import fill, room_for, small_disk
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1_200), pytest.mark.asyncio(loop_scope="session")]


def about(replica: ReplicaProcess) -> dict[str, str]:
    """The variables of a page that is about this replica."""
    return {"R": replica.name, "HEALTH": f"{replica.address.host}:{replica.address.health_port}"}


async def passive(stage: Stage) -> ReplicaProcess:
    """A replica that is not active, once all are well."""
    await all_well(stage)
    return (await stage.cluster.passives())[0]


@asynccontextmanager
async def nobody_takes_over(stage: Stage) -> AsyncIterator[ReplicaProcess]:
    """The active, frozen in a pause, so that no other takes the lock that it loses; at the end both are over."""
    cluster = stage.cluster
    active = await cluster.wait_for_active()
    try:
        async with cluster.config.ledgers().board("test") as board:
            await board.pause("a test")
        await eventually(lambda: paused(cluster), timeout_s=20.0)
        active.freeze_group()
        yield active
    finally:
        active.thaw()
        async with cluster.config.ledgers().board("test") as board:
            await board.resume()


async def test_failover(stage: Stage) -> None:
    """Goal: failover.md, automatic, forced, and where a pause keeps the others off. Method: kill, play; force; freeze
    in a pause, play."""
    async with under_load(stage, "failover"):
        fallen = await stage.cluster.wait_for_active()
        fallen.kill_group()
        await stage.play("failover", "Checks", **about(fallen))
        await stage.cluster.wait_for_active(other_than=fallen.name)
        await stage.play("failover", "Verification", **about(fallen))

        ill = await stage.cluster.wait_for_active()
        await stage.play("failover", "Steps", "Force it", **about(ill))
        await stage.play("failover", "Verification", **about(ill))
        assert await stage.cluster.wait_for_active(other_than=ill.name)

        await all_well(stage)
        async with nobody_takes_over(stage) as frozen:
            forced = await stage.play("failover", "Steps", "No replica takes over", **about(frozen))
            assert forced.endswith(" is active\n"), forced
            await stage.cluster.wait_for_active(other_than=frozen.name)
        await stage.play("failover", "Verification", **about(frozen))
    stage.assert_all_played("failover")


@pytest.mark.slow
@pytest.mark.spark
async def test_archive(stage: Stage) -> None:
    """Goal: an archiver that ended goes on where it was. Method: play the page under load; new, then killed."""
    async with under_load(stage, "archive"):
        await stage.play("archive", "Steps")
        await stage.play("archive", "Verification")
        await stage.play("archive", "Steps")
        for section in ("Checks", "Verification"):
            await stage.play("archive", section)
    stage.assert_all_played("archive")


@pytest.mark.thorough
async def test_tables(stage: Stage) -> None:
    """Goal: a job that was killed, or lost its index, goes on where the tables are. Method: play the page under load:
    new, killed, without its index; then compare each table's rows with the log."""
    async with under_load(stage, "tables"):
        await stage.play("tables", "Steps", "Start the job again")
        await stage.play("tables", "Verification")
        for part in (
            "Start the job again",
            "Queries are slow, or the tables have many small files",
            "The index of the job is damaged",
        ):
            await stage.play("tables", "Steps", part)
            for section in ("Checks", "Verification"):
                await stage.play("tables", section)
    stage.assert_all_played("tables")
    folder = stage.cluster.config.tables.folder
    tables = {name: DeltaTable(str(folder / name)).to_pyarrow_table() for name in ("requests", "completions")}
    for column, table in (("log_offset", tables["requests"]), ("ledger_offset", tables["completions"])):
        found = sorted(table[column].to_pylist())
        assert len(found) == len(set(found)) > 10, column
    assert max(found) == len(found)  # ledger offsets are dense


async def test_replica_replacement(stage: Stage) -> None:
    """Goal: a machine is lost for good. Method: kill a passive, delete all it had, play the page."""
    lost = await passive(stage)
    peer = next(one for one in await stage.cluster.passives() if one is not lost)
    async with under_load(stage, "replica-replacement"):
        await lost.stop()
        shutil.rmtree(stage.cluster.config.replica_dir(lost.name))
        for section in ("Checks", "Steps", "Verification"):
            await stage.play("replica-replacement", section, PEER=peer.name, **about(lost))
    stage.assert_all_played("replica-replacement")


@pytest.mark.thorough
async def test_adding_a_replica(stage: Stage) -> None:
    """Goal: a fourth replica, without an error for anybody. Method: play the page, then let it take part."""
    ports = {f"NEW_{use}_PORT": str(stage.cluster.free_port()) for use in ("API", "PROXY", "HEALTH")}
    async with under_load(stage, "adding-a-replica"):
        variables = {"R": "r4", "NEW_HOST": "127.0.0.1", **ports}
        for section in ("Checks", "Steps", "Verification"):
            await stage.play("adding-a-replica", section, **variables)
    stage.assert_all_played("adding-a-replica")


async def test_haproxy_loss(stage: Stage) -> None:
    """Goal: the endpoint is back. Method: kill HAProxy's master and worker, play the page."""
    async with under_load(stage, "haproxy-loss"):
        stage.cluster.haproxy.process.signal_group(signal.SIGKILL)
        for section in ("Checks", "Steps", "Verification"):
            await stage.play("haproxy-loss", section)
    stage.assert_all_played("haproxy-loss")


@pytest.mark.thorough
async def test_index_loss(stage: Stage) -> None:
    """Goal: a damaged index is found and rebuilt. Method: overwrite the middle of its files, play the page."""
    hurt = await passive(stage)
    async with under_load(stage, "index-loss"):
        await hurt.stop()
        damage(stage.cluster.config.replica_dir(hurt.name) / "index")
        printed = await stage.play("index-loss", "Checks", **about(hurt))
        assert "INDEX_UNREADABLE" in printed
        for section in ("Steps", "Verification"):
            printed = await stage.play("index-loss", section, **about(hurt))
        assert "readable and whole" in printed
    stage.assert_all_played("index-loss")


@pytest.mark.thorough
async def test_disk_full(stage: Stage) -> None:
    """Goal: a full disk stops one replica and no answer. Method: its folder on a small file system, filled; play."""
    full = await passive(stage)
    async with under_load(stage, "disk-full"):
        await full.stop()
        folder = stage.cluster.config.replica_dir(full.name)
        with small_disk(folder, room_for(folder / "index")) as volume:
            (volume / "index.evidence").mkdir()
            full.start()
            await all_well(stage)
            fill(volume / "index.evidence" / "000001.sst")
            await full.stop()
            full.start()
            for section in ("Checks", "Steps", "Verification"):
                await stage.play("disk-full", section, **about(full))
            await full.stop()
        full.start()
    stage.assert_all_played("disk-full")


@pytest.mark.thorough
@pytest.mark.only_kafka("there is no topic: postgres-log.md is that log's page")
async def test_topic(stage: Stage) -> None:
    """Goal: a broken contract is repaired, an index of another log found. Method: a retention; an index that names
    another barrier and another record."""
    cluster = stage.cluster
    hurt = await passive(stage)
    async with under_load(stage, "topic"):
        await cluster.kafka.set_topic_config(cluster.topic, {"retention.ms": "86400000"})
        assert "retention.ms" in await stage.play("topic", "Checks", **about(hurt))
        await stage.play("topic", "Steps", "`TOPIC_UNSAFE`", **about(hurt))
        await all_well(stage)

        await hurt.stop()
        index = RocksIndex(cluster.config.replica_dir(hurt.name) / "index")
        position = index.position()
        assert position is not None and position.barrier is not None
        foreign = msgspec.structs.replace(position.barrier, activation_id=bytes(16))
        index.write({}, msgspec.structs.replace(position, digest=bytes(32), barrier=foreign))
        index.close()
        hurt.start()
        await eventually(lambda: says(hurt, "LOG_MISMATCH"), 30.0)
        await stage.play("topic", "Steps", "`LOG_MISMATCH`", **about(hurt))
        await stage.play("topic", "Verification", **about(hurt))
    stage.assert_all_played("topic")


@pytest.mark.slow
@pytest.mark.only_kafka("there is no broker")
async def test_broker_loss(large: Stage) -> None:
    """Goal: one broker lost costs nothing, two cost time. Method: kill one, play; kill two, see the outage end."""
    brokers = large.cluster.kafka.brokers
    async with under_load(large, "broker-loss"):
        await brokers[2].process.kill()
        for section in ("Checks", "Steps", "Verification"):
            await large.play("broker-loss", section, BROKER=str(brokers[2].node_id))
        await brokers[1].process.kill()
        await brokers[2].process.kill()
        await large.play("broker-loss", "Steps", BROKER=str(brokers[1].node_id))
        await large.play("broker-loss", "Steps", BROKER=str(brokers[2].node_id))
        await large.play("broker-loss", "Verification")
    large.assert_all_played("broker-loss")


@pytest.mark.slow
@pytest.mark.only_kafka("a backup has log and completions of one moment: postgres-log.md")
async def test_database_restore(large: Stage, folder: Path) -> None:
    """Goal: an old backup is enough. Method: dump, go on, lose the database, play; every answer still holds."""
    cluster, backup = large.cluster, folder / "notary.dump"
    variables = {"BACKUP": str(backup), "REPLICAS": " ".join(cluster.replicas)}
    async with under_load(large, "database-restore"):
        subprocess.run(
            [str(find_binaries() / "pg_dump"), "--format=custom", f"--file={backup}", large.admin()], check=True
        )
        await asyncio.sleep(3.0)  # what only the log has
        await large.play("database-restore", "Checks", **variables)
        await large.play("database-restore", "Steps", **variables)
        await large.play("database-restore", "Verification", **variables)
    large.assert_all_played("database-restore")


@pytest.mark.slow
@pytest.mark.only_kafka("nobody goes on without a standby: test_postgres_profile.py, and the lab")
async def test_database_failover(large: Stage) -> None:
    """Goal: no answer is lost with a database server. Method: standby away and active killed, twice; primary away."""
    cluster, standby = large.cluster, large.cluster.postgres_standby
    assert standby is not None
    names = {"PRIMARY": "15-main", "STANDBY": "15-standby", "STANDBY_NAME": "standby"}
    async with under_load(large, "database-failover"):
        for part in ("The standby is gone", "The standby does not come back"):
            await all_well(large)
            fallen = await cluster.wait_for_active()
            await standby.stop()
            await eventually(lambda: waits_for_standby(large))
            fallen.kill_group()
            await large.play("database-failover", "Checks", **names)
            assert await cluster.active() is None
            await large.play("database-failover", "Steps", part, **names)
            await cluster.wait_for_active()
        await standby.start()
        await large.play("database-failover", "Steps", "A standby streams again", **names)
        await all_well(large)
        await cluster.postgres.kill()
        promoted = {"PGPORT": str(standby.port)}
        await large.play("database-failover", "Checks", **names)
        await large.play("database-failover", "Steps", "The primary is gone", **names, **promoted)
        await cluster.wait_for_active()
        await large.play("database-failover", "Verification", **names, **promoted)
    large.assert_all_played("database-failover")


async def says(replica: ReplicaProcess, word: str) -> bool:
    """Whether the end of its log has the text."""
    return word in replica.log_tail()


async def waits_for_standby(stage: Stage) -> bool:
    """Whether a commit waits for a standby that is gone."""
    async with await psycopg.AsyncConnection.connect(stage.admin()) as connection:
        found = await connection.execute(b"SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
        return found.rowcount > 0


def damage(index: Path) -> None:
    """Overwrite the middle of every table and log file of an index."""
    files = [path for path in index.iterdir() if path.suffix in (".sst", ".log") or path.name.startswith("MANIFEST")]
    assert files
    for path in files:
        size = path.stat().st_size
        with path.open("r+b") as file:
            file.seek(size // 3)
            file.write(b"\xa5" * max(1, size // 3))
