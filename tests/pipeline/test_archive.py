"""The archive job with a real broker and real Spark: exactly once, whatever is killed when."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from pipeline.archive.manifest import Manifest, load_manifest
from pipeline.archive.on_spark import on_spark
from pipeline.archive.segment import read_segment
from pipeline.archive.verify import verify_archive
from pipeline.archive.write import Archiver, BatchSize, OnStep, Step
from pipeline.sources.log import Connector
from pipeline.sources.topic import look_at
from replica.local.kafka import KafkaCluster
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from replica.notary.errors import ArchiveContended, ArchiveMismatch, LogRefused
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.store.archive_head import ArchiveHeads
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.worlds.archive_world import SIGNER, some_log

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

SIZE = BatchSize(segment_records=10, segments=2)
VALUES = some_log(65)


class Killed(BaseException):
    """Stands for a kill: nothing in the job catches it."""


@dataclass
class World:
    """A topic, a database, and an archive to be."""

    spark: SparkSession
    settings: KafkaSettings
    heads: ArchiveHeads
    folder: Path
    dsn: str

    def produce(self, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers, "linger.ms": 5})
        for value in values:
            producer.produce(self.settings.topic, value, partition=0)
        assert producer.flush(20) == 0

    def run(self, connector: Connector | None = "auto", on_step: OnStep = lambda step, manifest: None) -> Manifest:
        view = look_at(self.settings)
        write = None if connector is None else on_spark(self.spark, self.settings, connector)
        archiver = Archiver(self.settings, self.folder, SIGNER, self.heads, size=SIZE, write=write, on_step=on_step)
        with archiver.open(view, 1, "archive-1") as manifest:
            archiver.archive(manifest, view.end)
            return manifest

    def archived(self) -> list[tuple[int, bytes | None]]:
        manifest = load_manifest(self.folder, SIGNER.public_key)
        found = verify_archive(self.folder, SIGNER.public_key, self.heads.newest)
        assert found.findings == []
        return [
            (record.offset, record.value)
            for segment in manifest.segments
            for record in read_segment(manifest.segments_folder, segment.facts)
        ]


@pytest.fixture
def world(spark: SparkSession, kafka_broker: KafkaCluster, make_database: MakeDatabase, tmp_path: Path) -> World:
    """A new topic with sixty-five records, a new database."""
    topic = f"archive-{tmp_path.name}"[:200]
    settings = KafkaSettings(bootstrap_servers=kafka_broker.bootstrap_servers, topic=topic, single_broker=True)
    asyncio.run(create_topic(settings))
    dsn = asyncio.run(_new_database(make_database))
    world = World(spark, settings, ArchiveHeads(dsn), tmp_path / "archive", dsn)
    world.produce(VALUES)
    return world


async def _new_database(make_database: MakeDatabase) -> str:
    dsn = await make_database()
    await migrate(dsn, 1)
    return dsn


def test_the_log_is_archived_and_the_archive_goes_on(world: World) -> None:
    """Goal: all of the log, once, with positions. Method: archive, append, archive again, archive nothing."""
    manifest = world.run()
    assert world.archived() == list(enumerate(VALUES))
    expected = read_records(begin(look_at(world.settings).topic_id), list(enumerate(VALUES))).position
    assert manifest.position == expected
    world.produce(VALUES[1:])
    world.run("python")
    world.produce(VALUES[1:30])
    again = world.run(None)  # in this process
    assert world.archived() == list(enumerate([*VALUES, *VALUES[1:], *VALUES[1:30]]))
    assert world.heads.newest("archive-1") == again.head
    assert again.position.seen == expected.seen  # all repeats


@pytest.mark.thorough
@pytest.mark.parametrize("step", list(Step))
def test_a_kill_behind_any_step_loses_and_doubles_nothing(world: World, step: Step) -> None:
    """Goal: exactly once. Method: kill the job at the second such step, run it again, compare with the log."""
    seen = 0

    def kill(now: Step, _: Manifest) -> None:
        nonlocal seen
        seen += now is step
        if seen == (1 if step is Step.OPENED else 2):
            raise Killed

    with pytest.raises(Killed):
        world.run(on_step=kill)
    (world.folder / "segments" / "left-by-a-killed-worker.partial").write_bytes(b"half")
    world.run()
    assert world.archived() == list(enumerate(VALUES))
    assert len(list((world.folder / "segments").iterdir())) == 2 * len(load_manifest(world.folder).segments)


def test_what_is_not_this_log_is_refused(world: World, kafka_broker: KafkaCluster) -> None:
    """Goal: one archive, one log, one archiver. Method: a second archiver; another topic; a topic created again."""
    world.run()
    with pytest.raises(ArchiveContended, match="another archiver"):
        world.run(on_step=lambda step, manifest: world.run())
    asyncio.run(kafka_broker.delete_topic(world.settings.topic))
    asyncio.run(create_topic(world.settings))
    world.produce(VALUES)
    with pytest.raises((ArchiveMismatch, LogRefused), match="topic id"):
        world.run()
