"""What each part keeps at a power cut, tried on the part itself: so the fault scenarios' cuts are known to see it.

In each test some writes are on disk before the disk is armed, and as many are acknowledged after that. A part that
syncs has all of them after the cut; one that does not has those from before.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from replica.local.kafka import KafkaCluster, start_broker
from replica.local.ports import PortReservation
from replica.local.postgres import PostgresServer
from replica.local.process import ManagedProcess
from tests.integration.power_cut_writers import AFTER, BEFORE, PARTS
from tests.lossy_disk import LossyDisks, freeze, lossy_disks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

ANSWER_MAX_S = 20.0
TOPIC = "records"
# Without it the background writer syncs what a commit did not, every 0.2 s.
LATE = {"wal_writer_delay": "10s"}


@pytest.fixture
def disks(request: pytest.FixtureRequest) -> Iterator[LossyDisks]:
    """One disk."""
    with lossy_disks("disk", kind=request.config.getoption("--disks")) as disks:
        yield disks


@pytest.mark.parametrize(
    ("part", "kept"),
    [
        ("index, synced", BEFORE + AFTER),
        ("index, as it is", BEFORE),  # position and entries go back together, and the log has the rest
        ("log node", BEFORE + AFTER),
        ("log node that never syncs", BEFORE),
        ("ledger, as it is", BEFORE),  # likewise
        ("SQLite, synced", BEFORE + AFTER),
    ],
)
def test_a_file_keeps_what_is_synced(disks: LossyDisks, part: str, kept: int) -> None:
    """Goal: the disk shows whether a part syncs. Method: a process that writes, cut, opened again."""
    folder = disks["disk"].folder / "part"
    folder.mkdir()
    argv = [sys.executable, "-m", "tests.integration.power_cut_writers", part, str(folder)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        assert int(writer.stdout.readline()) == BEFORE
        disks.arm()
        writer.stdin.write("\n")
        writer.stdin.flush()
        while int(writer.stdout.readline()) < BEFORE + AFTER:
            pass
        freeze([writer.pid])
        disks.cut()
        writer.kill()
    disks.bring_back()
    assert PARTS[part][1](folder) == kept


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        pytest.param({}, BEFORE + AFTER, id="default"),
        pytest.param({"synchronous_commit": "off", **LATE}, BEFORE, id="synchronous_commit=off"),
        pytest.param({"fsync": "off", **LATE}, BEFORE, id="fsync=off"),
    ],
)
async def test_postgres_keeps_what_it_committed(disks: LossyDisks, settings: dict[str, str], kept: int) -> None:
    """Goal: a commit is on disk unless a setting says otherwise. Method: commits of one row each, cut, start."""
    with PortReservation() as ports:
        server = PostgresServer(disks["disk"].folder / "postgres", ports.take(), settings)
        await server.start()
        try:
            async with await psycopg.AsyncConnection.connect(server.dsn(), autocommit=True) as connection:
                await connection.execute("CREATE TABLE t (n integer)")
                for _ in range(BEFORE):
                    await connection.execute("INSERT INTO t VALUES (1)")
                await connection.execute("CHECKPOINT")  # what commits have left in memory
                disks.arm()
                for _ in range(AFTER):
                    await connection.execute("INSERT INTO t VALUES (1)")
                await lose_power(disks, server.process)
            await server.start()
            async with await psycopg.AsyncConnection.connect(server.dsn()) as connection:
                cursor = await connection.execute("SELECT count(*) FROM t")
                assert await cursor.fetchone() == (kept,)
        finally:
            await server.stop(immediate=True)


@pytest.mark.parametrize(
    ("flush_messages", "kept"),
    [pytest.param("1", BEFORE + AFTER, id="flush.messages=1"), pytest.param(str(2**63 - 1), BEFORE, id="default")],
)
async def test_a_broker_keeps_what_it_flushed(disks: LossyDisks, flush_messages: str, kept: int) -> None:
    """Goal: an acknowledged record is in page cache, unless the topic asks for more. Method: one broker, cut, start."""
    with PortReservation() as ports:
        brokers = await start_broker(disks["disk"].folder / "kafka", ports)
        try:
            await brokers.create_topic(TOPIC)
            await brokers.set_topic_config(TOPIC, {"flush.messages": flush_messages})
            producer = Producer({"bootstrap.servers": brokers.bootstrap_servers, "acks": "all"})
            acknowledged(producer, BEFORE)
            disks.arm()
            acknowledged(producer, AFTER)
            await lose_power(disks, brokers.brokers[0].process)
            await brokers.start()
            assert end_of(brokers) == kept
        finally:
            await brokers.stop(grace_s=0)


async def lose_power(disks: LossyDisks, process: ManagedProcess) -> None:
    """A server's disk loses what was not synced, and the server ends; the disk comes back."""
    freeze([process.pid])
    disks.cut()
    await process.kill()
    disks.bring_back()


def acknowledged(producer: Producer, count: int) -> None:
    """Write records, each acknowledged before the next."""
    for _ in range(count):
        producer.produce(TOPIC, b"record", on_delivery=_raise)
        assert producer.flush(ANSWER_MAX_S) == 0


def _raise(error: object, message: object) -> None:
    assert error is None, error


def end_of(brokers: KafkaCluster) -> int:
    """The offset after the topic's last record."""
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap_servers, "group.id": "end"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(TOPIC, 0), timeout=ANSWER_MAX_S)
    finally:
        consumer.close()
    return int(end)
