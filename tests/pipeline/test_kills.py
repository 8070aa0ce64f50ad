"""A job that the operating system kills at any step, and that is run again, loses nothing and doubles nothing."""

from __future__ import annotations

import os
import signal
from itertools import count
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pipeline.archive.restore import plan_restore, run_restore
from pipeline.archive.restore_plan import Until
from pipeline.jobs.rebuild import rebuild_index
from pipeline.session import delta_jars
from pipeline.sources.topic import look_at
from pipeline.tables.delta import View, look
from pipeline.tables.query import COMMITS_AT_ONCE
from pipeline.tables.rows import SCHEMAS
from pipeline.tables.write import open_writer
from replica.index.rocks import RocksIndex, verify_index
from replica.local.kafka import KafkaCluster
from replica.log.kafka.settings import KafkaSettings
from replica.notary.errors import ArchiveContended, IndexUnreadable
from replica.notary.position import BEGIN
from tests.pipeline.judged import TOPIC, by_replica
from tests.pipeline.killed_job import killed_at
from tests.pipeline.log_files import write_log
from tests.pipeline.random_logs import chain
from tests.pipeline.signed_log import longer_values
from tests.pipeline.test_archive import VALUES, World, world
from tests.worlds.archive_world import SIGNER, make_archive, some_log

__all__ = ["world"]  # a fixture
pytestmark = pytest.mark.spark

_numbers = count(1)

ARCHIVE = [
    "pipeline.archive.write:open_manifest+1",
    "pipeline.archive.layout:FolderLayout.remove_orphans-1",
    "pipeline.archive.on_spark:log_frame+2",
    "pipeline.archive.write:_entries-2",  # the segments of a batch are there, no line names them
    "pipeline.archive.write:_entries+2",
    "pipeline.archive.layout:sync_file-2",  # lines are written, perhaps not yet on the disk
    "pipeline.archive.manifest:Manifest.append+2",
    "replica.store.archive_head:ArchiveHeads.record-2",
    "replica.store.archive_head:ArchiveHeads.record+2",
]
RESTORE = [
    "replica.log.kafka.refill:create_topic-1",
    "replica.log.kafka.refill:create_topic+1",
    "replica.log.kafka.refill:_set_times+1",
    "replica.log.kafka.refill:_send+1",
    "replica.log.kafka.refill:_send+1200",  # some are written, some are on their way
    "replica.log.kafka.refill:_produce+1",
    "replica.log.kafka.refill:_set_times+2",
    "pipeline.archive.restore:compare+1",
]
CI_REBUILD = "pipeline.jobs.judge:_resolve+1"  # the one kill that CI has time for
REBUILD = [
    "pipeline.jobs.judge:plan_log+1",
    "pipeline.jobs.judge:_write_rows+1",
    "pipeline.jobs.judge:_order_claims+1",
    "pipeline.jobs.rebuild:_write_tables+1",
    "replica.index.tables:put_positions-1",  # the tables are taken in, the position is not written
    "pipeline.jobs.rebuild:adopt_tables+1",
]

TABLES = [  # on Spark: how many tables have the batch's rows when the job is killed
    ("pipeline.tables.query:append_rows-1", 0),
    ("pipeline.tables.query:append_rows+1", 1),
    ("pipeline.tables.query:append_rows+2", 2),
    ("pipeline.tables.query:append_rows+3", 3),
    ("pipeline.tables.query:append_rows+4", 4),
    ("pipeline.tables.write:OrderedJudge.advance-1", 5),
    ("pipeline.tables.write:OrderedJudge.advance+1", 5),
]


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.postgres
@pytest.mark.parametrize("point", ARCHIVE)
def test_an_archive_that_is_killed(world: World, point: str) -> None:
    """Goal: each record is archived once. Method: SIGKILL at a step, run again, compare with the topic."""
    settings = world.settings.model_dump(mode="json")
    assert killed_at(point, "archive", kafka=settings, folder=str(world.folder), dsn=world.dsn) == -signal.SIGKILL
    manifest = world.run()
    assert world.archived() == list(enumerate(VALUES))
    assert world.heads.newest("archive-1") == manifest.head
    assert len(list((world.folder / "segments").iterdir())) == 2 * len(manifest.segments)


@pytest.mark.slow
@pytest.mark.kafka
@pytest.mark.parametrize("point", RESTORE)
def test_a_restore_that_is_killed(kafka_broker: KafkaCluster, tmp_path: Path, point: str) -> None:
    """Goal: every record comes back, once, at its offset. Method: SIGKILL at a step, resume, compare all of them."""
    values = some_log(2_000)
    manifest, _ = make_archive(tmp_path / "archive", values, 500)
    target = KafkaSettings(
        bootstrap_servers=kafka_broker.bootstrap_servers, topic=f"killed-{next(_numbers)}", single_broker=True
    )
    settings = target.model_dump(mode="json")
    assert killed_at(point, "restore", kafka=settings, folder=str(tmp_path / "archive")) == -signal.SIGKILL
    plan = plan_restore(manifest, SIGNER.public_key, target, Until(), resume=True)
    evidence = run_restore(manifest, plan, target, lambda: 7, lambda offset: None)
    assert evidence.archived_root == evidence.restored_root
    assert look_at(target).end == len(values)  # checks the contract, too: the times are the brokers' again


@pytest.mark.parametrize("point", [CI_REBUILD, *(pytest.param(point, marks=pytest.mark.slow) for point in REBUILD)])
def test_a_rebuild_that_is_killed(spark: SparkSession, tmp_path: Path, point: str) -> None:
    """Goal: what is left is no index or a whole one; the next run makes it. Method: SIGKILL at a step, look, repeat."""
    values = [*chain(), *chain()[1:]]
    log = write_log(tmp_path / "log", values, [2, 4])
    left, work = tmp_path / "left", tmp_path / "work"
    code = killed_at(point, "rebuild", log=str(tmp_path / "log"), folder=str(left), work=str(work))
    assert code == -signal.SIGKILL
    expected = by_replica(values)
    if left.exists():
        try:
            index = RocksIndex(left)
        except IndexUnreadable:
            pass
        else:
            assert (list(index.entries()), index.position()) == (expected.entries, expected.position)
            index.close()
    rebuild_index(spark, log, tmp_path / "index", work, ranges=3)  # in the work folder that it left
    assert verify_index(tmp_path / "index").entry_count == len(expected.entries)
    index = RocksIndex(tmp_path / "index")
    assert (list(index.entries()), index.position()) == (expected.entries, expected.position)
    index.close()


@pytest.mark.slow
@pytest.mark.skipif(not delta_jars(), reason="no jars of Delta Lake: `make setup` fetches them")
@pytest.mark.parametrize("killed", TABLES)
def test_a_query_that_is_killed(tmp_path: Path, killed: tuple[str, int]) -> None:
    """Goal: each row is there once, and the index is gone on with. Method: SIGKILL between any two commits of a batch,
    and around that of the index; which tables have its rows says that the gap was hit. The other engine goes on."""
    point, written = killed
    place, index = _log_of_two_files(tmp_path)
    arguments = {"place": str(place), "index": str(index), "log": (tmp_path / "log").as_uri()}
    assert killed_at(point, "tables_on_spark", commits_at_once=1, **arguments) == -signal.SIGKILL
    assert [look(place / name)["offset"] for name in SCHEMAS].count(11) == written
    with open_writer(place, index, TOPIC) as writer:
        assert writer.position.offset == (11 if point.endswith("advance+1") else BEGIN)
    _go_on(place, index)
    _each_row_is_there_once(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not delta_jars(), reason="no jars of Delta Lake: `make setup` fetches them")
@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_query_that_is_killed_with_commits_in_flight(tmp_path: Path, done: int) -> None:
    """Goal: the same where tables are written side by side, and Spark's JVM outlives the job. Method: SIGKILL when so
    many tables are written; the other engine goes on at once, as a service manager would have it."""
    place, index = _log_of_two_files(tmp_path)
    arguments = {"place": str(place), "index": str(index), "log": (tmp_path / "log").as_uri()}
    point = f"pipeline.tables.query:append_rows+{done}"
    assert killed_at(point, "tables_on_spark", commits_at_once=COMMITS_AT_ONCE, **arguments) == -signal.SIGKILL
    _go_on(place, index)
    _each_row_is_there_once(tmp_path)


def _log_of_two_files(folder: Path) -> tuple[Path, Path]:
    """Writes the log, of which each file is a batch; where its tables and their index are to be."""
    write_log(folder / "log", longer_values(), [12])
    for at_s, file in enumerate(sorted((folder / "log").iterdir()), 1):
        os.utime(file, (at_s, at_s))  # Spark takes files by age
    return folder / "tables", folder / "index"


def _go_on(place: Path, index: Path) -> None:
    """The rest of the log, by the other engine; a JVM that outlived its job may be first at one table or another."""
    for _ in SCHEMAS:
        try:
            with open_writer(place, index, TOPIC) as writer:
                writer.append(list(enumerate(longer_values()))[writer.position.offset + 1 :])
            return
        except ArchiveContended:
            continue
    raise AssertionError("a job that is gone goes on writing")


def _each_row_is_there_once(folder: Path) -> None:
    values = longer_values()
    with open_writer(folder / "once", folder / "other", TOPIC) as writer:
        writer.append(list(enumerate(values)))
    for name, schema in SCHEMAS.items():
        found, expected = (
            View(place / name).rows(schema, BEGIN, len(values)) for place in (folder / "tables", folder / "once")
        )
        assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))
