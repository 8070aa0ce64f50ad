"""The request log is cut, lost, replaced or fed with noise: all replicas refuse it, or all treat the noise as void.

No replica ever goes on with a shortened log.
"""

from __future__ import annotations

import asyncio
import collections
import os
import shutil
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psycopg
import pytest
from confluent_kafka import Producer, TopicPartition

from ha.lock.ids import Counter, lock_id
from replica.local.cluster import LocalCluster
from replica.local.participant import DATABASE
from replica.local.replica import ReplicaProcess
from replica.local.topic_reader import read_topic
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from replica.notary.position import begin
from replica.notary.reading import VoidReason, read_records
from replica.notary.records import RECORD_MAX_BYTES, RequestRecord, encode_record
from tests.ends import ends_by_design
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.test_system import epoch_of
from tests.faults.tools import (
    Words,
    all_end,
    audited_by_spark,
    refused_by_all,
    samples,
    start_replicas,
    stop_replicas,
)
from tests.faults.under_load import end_of_log, under_load
from tests.faults.witness import only_witness, witness
from tests.golden.samples import RECORDS
from tests.worlds.beginning import next_barrier

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.asyncio(loop_scope="session"),
]


DAMAGE = "damage to a broker's files or to a topic; to a log's tables: log_postgres/test_damage.py"


@asynccontextmanager
async def disk_brought_back(cluster: LocalCluster) -> AsyncIterator[Path]:
    """Copy the disk of a broker that is down, and give the copy back at the end.

    Every replica must be down meanwhile, or refuse and end: answers from another disk are lost with it.
    """
    broker = cluster.kafka.brokers[0]
    await cluster.kafka.stop()
    kept = broker.folder.with_name("kept")
    shutil.copytree(broker.folder, kept)
    cluster.kafka.allow_deletion()
    try:
        with ends_by_design(*cluster.replicas.values()):
            yield broker.folder / "data" / f"{cluster.topic}-0"
    finally:
        await cluster.kafka.stop()
        shutil.rmtree(broker.folder)
        kept.rename(broker.folder)
        cluster.kafka.allow_deletion(False)
        await cluster.kafka.start()


@pytest.mark.only_kafka(DAMAGE)
@pytest.mark.scenario("F12", "the log loses its end, its start, or is another topic")
@pytest.mark.parametrize("loss", ["end", "start", "created anew"])
async def test_a_log_that_is_not_whole_is_refused(cluster: LocalCluster, scenario: Scenario, loss: str) -> None:
    """Goal: a lost record is not an unspent state. Method: cut the broker's disk; all refuse; the disk comes back."""
    async with only_witness(cluster, scenario) as spender:
        await spender.spend(200)
        await stop_replicas(cluster)
        async with disk_brought_back(cluster) as partition:
            if loss == "end":
                cut_end(partition)
            await cluster.kafka.start()
            if loss == "start":
                await delete_before(cluster, 100)
            elif loss == "created anew":
                await cluster.kafka.delete_topic(cluster.topic)
                await cluster.prepare_log()
            code = "LOG_MISMATCH" if loss == "created anew" else "LOG_TRUNCATED"
            await refused_by_all(cluster, code)
            scenario.fired(f"{loss}: {code} at {', '.join(cluster.replicas)}")
        await start_replicas(cluster)
        await spender.spend_again()


def cut_end(partition: Path) -> None:
    """Lose the newest third of the log, as a disk does that was not synced when its power went."""
    (segment,) = partition.glob("*.log")
    os.truncate(segment, segment.stat().st_size * 2 // 3)
    (partition.parent / ".kafka_cleanshutdown").unlink(missing_ok=True)


async def delete_before(cluster: LocalCluster, offset: int) -> None:
    """Delete the log's first records."""
    partition = TopicPartition(cluster.topic, 0, offset)
    for future in cluster.kafka.admin().delete_records([partition]).values():
        await asyncio.to_thread(future.result, 30.0)


@pytest.mark.only_kafka(DAMAGE)
@pytest.mark.scenario("F12", "the topic is deleted and created anew under running replicas")
async def test_a_topic_that_vanishes_ends_every_replica(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: no answer from a log that is gone, no record in one that is new. Method: delete, create; bring back."""
    async with only_witness(cluster, scenario) as spender:
        await spender.spend(100)
        await stop_replicas(cluster)
        async with disk_brought_back(cluster), nobody_active(cluster):
            await cluster.kafka.start()
            words = {replica: Words(replica) for replica in cluster.replicas.values()}
            for replica in words:
                replica.start()
            await wait_for_return(cluster)
            await cluster.kafka.delete_topic(cluster.topic)
            await cluster.prepare_log()
            await all_end(words, "LOG_MISMATCH")
            scenario.fired("created anew under running replicas: LOG_MISMATCH at all")
            assert await end_of_log(cluster) == 1  # the genesis: no replica wrote to it
        await start_replicas(cluster)
        await spender.spend_again()


@asynccontextmanager
async def nobody_active(cluster: LocalCluster) -> AsyncIterator[None]:
    """A stranger holds the lock, so that no activation writes to a log that is going to be put back."""
    held = lock_id(DATABASE, Counter.PARTICIPANT_WRITE)
    async with await psycopg.AsyncConnection.connect(cluster.postgres.dsn(DATABASE), autocommit=True) as connection:
        await connection.execute("SELECT pg_advisory_lock(%s)", [held])
        yield


NOISE: dict[str, tuple[bytes, VoidReason]] = {
    "empty": (b"", VoidReason.UNDECODABLE),
    "no MessagePack": (b"\xc1" * 64, VoidReason.UNDECODABLE),
    "deep nesting": (b"\x91" * 100_000, VoidReason.UNDECODABLE),
    "as large as the topic takes": (b"\xa5" * (RECORD_MAX_BYTES + 500), VoidReason.UNDECODABLE),
    "a barrier of an older epoch": (
        next_barrier(1, b"z" * 16, "stranger"),
        VoidReason.BARRIER_NOT_HIGHER,
    ),
}


@pytest.mark.scenario("F13", "strangers write to the log: noise, unknown formats, forged records")
async def test_poison_is_void_for_every_reader(cluster: LocalCluster, scenario: Scenario) -> None:
    """Goal: one verdict for all. Method: write noise under load; compare what replicas and Spark counted."""
    before, epoch = {name: voids_of(one) for name, one in cluster.replicas.items()}, await epoch_of(cluster)
    async with under_load(cluster, scenario), witness(cluster, scenario) as spender:
        await spender.spend(50)
        await write_noise(cluster)
        await spender.spend(50)
        await spender.spend_again()
        await asyncio.sleep(2.0)
        counted = {name: increase(before[name], voids_of(replica)) for name, replica in cluster.replicas.items()}
        expected = expected_voids()
        (found, *others) = counted.values()
        assert all(other == found for other in others), counted
        if await epoch_of(cluster) == epoch:
            assert found == expected
        else:  # of several claims to a lease all but one are void, and so are the last records of who was deposed
            assert all(found.get(reason, 0) >= count for reason, count in expected.items()), (found, expected)
        scenario.fired(f"{sum(expected.values())} poison records, void at {', '.join(counted)}")
    by_spark = await audited_by_spark(cluster)
    assert by_spark["voids"] == await asyncio.to_thread(voids_of_the_log, cluster)


async def write_noise(cluster: LocalCluster) -> None:
    """Each kind of noise, past the notary: to the topic, with a replica's login to the tables, to the log nodes."""
    values = [value for value, _ in noise()]
    if isinstance(cluster.config.log.settings, RaftLogSettings):
        log = RaftLog(cluster.config.log.settings)
        client = await log.connect(await log.leader())
        await client.append(values)
        await client.close()
        await log.close()
    else:
        write = write_to_tables if cluster.log_kind == "postgres" else write_to_topic
        await asyncio.to_thread(write, cluster, values)


def write_to_tables(cluster: LocalCluster, values: list[bytes]) -> None:
    """With a replica's login."""
    with psycopg.connect(cluster.conninfo, autocommit=True) as login:
        (log_id,) = login.execute("SELECT log_id FROM notary_log.log_head").fetchone() or ()
        for value in values:
            login.execute("CALL notary_log.append_and_commit(%s, %s, 0, NULL, NULL, NULL)", [log_id, [value]])


def write_to_topic(cluster: LocalCluster, values: list[bytes]) -> None:
    """As any client of the brokers."""
    producer = Producer({"bootstrap.servers": cluster.kafka.bootstrap_servers, "message.max.bytes": 2_000_000})
    for value in values:
        producer.produce(cluster.topic, value, partition=0)
    assert producer.flush(30.0) == 0


def noise() -> list[tuple[bytes, VoidReason]]:
    """All kinds, and a request under an activation that is nobody's: in this format, an earlier and a later one."""
    request = next(record for record in RECORDS.values() if isinstance(record, RequestRecord))
    stranger = msgspec.structs.replace(request, activation_id=b"?" * 16)
    earlier, later = (msgspec.structs.replace(request, format=number) for number in (1, 99))
    return [
        *NOISE.values(),
        (encode_record(stranger), VoidReason.NOT_IN_FORCE),
        (encode_record(earlier), VoidReason.UNDECODABLE),
        (encode_record(later), VoidReason.UNDECODABLE),
    ]


def expected_voids() -> dict[str, int]:
    """How many voids of each reason the noise makes."""
    return counted(reason for _, reason in noise())


def counted(reasons: Iterable[VoidReason]) -> dict[str, int]:
    """How often each reason occurs."""
    return dict(collections.Counter(reason.value for reason in reasons))


def voids_of_the_log(cluster: LocalCluster) -> dict[str, int]:
    """What a replica that reads the whole log counts as void, by reason."""
    reading = read_records(begin(cluster.topic_id), read_topic(cluster.config.log.settings, None))
    return counted(void.reason for void in reading.voids)


def voids_of(replica: ReplicaProcess) -> dict[str, float]:
    """What a replica has counted as void so far, by reason."""
    return {sample.labels["reason"]: sample.value for sample in samples(replica, "notary_void_records_total")}


def increase(before: dict[str, float], after: dict[str, float]) -> dict[str, int]:
    """What was added, without the zeros."""
    return {reason: int(count - before[reason]) for reason, count in after.items() if count > before[reason]}
