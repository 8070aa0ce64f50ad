"""The rebuild on Spark gives the index of a replica: entry by entry, and in position."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pipeline.jobs.rebuild import TOGETHER_MIN, rebuild_index
from pipeline.jobs.slices import ParquetLog
from pipeline.judging.columns import Columns
from replica.following.apply import Applier
from replica.index.rocks import RocksIndex, verify_index
from replica.index.summary import summarise
from replica.notary.errors import IndexUnreadable
from replica.notary.position import Position
from tests.bench.pipeline.big_log import write_big_log
from tests.pipeline.judged import TOPIC, by_replica
from tests.pipeline.log_files import write_log
from tests.pipeline.random_logs import chain, logs
from tests.worlds.notary_logs import Log, LogMaker, request_of
from tests.worlds.notary_logs import logs as mixed_logs
from tests.worlds.party_logs import told_log

pytestmark = pytest.mark.spark


def opened(folder: Path) -> tuple[list[tuple[bytes, bytes]], Position | None]:
    """What a replica finds in an index: entries in key order, and the position."""
    index = RocksIndex(folder)
    try:
        return list(index.entries()), index.position()
    finally:
        index.close()


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(logs(60), st.lists(st.integers(1, 60), max_size=3), st.sampled_from([1, 2, 4, 8]))
def test_the_rebuilt_index_is_that_of_a_replica(
    spark: SparkSession, values: list[bytes], cuts: list[int], ranges: int
) -> None:
    """Goal: same ordered keys and values, same position. Method: random logs in files, Spark against `Applier`."""
    values = [*values, *chain()]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rebuild_index(spark, write_log(folder / "log", values, cuts), folder / "index", folder / "work", ranges=ranges)
        expected = by_replica(values)
        assert opened(folder / "index") == (expected.entries, expected.position)


@pytest.mark.thorough
@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(mixed_logs(), st.lists(st.integers(1, 45), max_size=3), st.sampled_from([1, 2, 4, 8]))
def test_acceptances_of_a_mixed_log_are_those_of_a_replica(
    spark: SparkSession, log: Log, cuts: list[int], ranges: int
) -> None:
    """Goal: states and acceptances, key by key, and the position. Method: random mixed logs, Spark and `Applier`."""
    values = [value for _, value in log] + chain_of_commands()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        slices = write_log(folder / "log", values, cuts)
        rebuilt = rebuild_index(spark, slices, folder / "index", folder / "work", ranges=ranges)
        expected = by_replica(values)
        assert opened(folder / "index") == (expected.entries, expected.position)
        assert rebuilt.entry_count == len(expected.entries)
        assert expected.commands or not expected.parties


@pytest.mark.thorough
def test_claims_are_freed_as_their_tables_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: a rebuild of many ranges needs the disk of the index, not twice that. Method: more ranges than are written
    together; the index is a replica's, and what the work folder keeps takes no more than a block for each step."""
    (path,) = write_big_log(tmp_path / "bench", 40_000)
    values = pq.read_table(path).column("value").to_pylist()
    log = write_log(tmp_path / "log", values, [20_000])
    rebuild_index(spark, log, tmp_path / "index", tmp_path / "work", ranges=2 * TOGETHER_MIN + 3)
    assert verify_index(tmp_path / "index").digest == summarise(None, by_replica(values).entries).digest
    left = list((tmp_path / "work").glob("*.claims"))
    assert sum(path.stat().st_size for path in left) > 10 << 20
    assert sum(path.stat().st_blocks * 512 for path in left) < 1 << 20
    assert not list((tmp_path / "work").glob("*.order"))


def chain_of_commands() -> list[bytes]:
    """A log's end: accepted, deduplicated, a command of another transaction, accepted again."""
    maker = LogMaker()
    maker.barrier(1_000_000)
    first = request_of(100, (100,))
    for request, period_us in ((first, 9), (first, 9), (request_of(101, (101,)), 9), (first, 0)):
        maker.submit(request, command="chained", deduplication_us=period_us, stamp_us=1_000 + len(maker.values))
    return maker.values


@pytest.mark.thorough
def test_a_replica_goes_on_over_a_fail_over_from_an_index_of_before(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: an index that was rebuilt up to before a fail-over comes up right. Method: rebuilt, then the rest of
    the log is applied."""
    before = chain()
    values = [*before, *chain_of_commands()]
    head = msgspec.structs.replace(write_log(tmp_path / "log", values), end_offset=len(before))
    expected = by_replica(values)
    rebuild_index(spark, head, tmp_path / "index", tmp_path / "work")
    index = RocksIndex(tmp_path / "index")
    try:
        Applier(index, TOPIC).apply(list(enumerate(values))[len(before) :])
    finally:
        index.close()
    assert opened(tmp_path / "index") == (expected.entries, expected.position)


@pytest.mark.thorough
def test_the_rebuilt_index_has_officers_and_registrations(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: a replica goes on from it, without reading the log again. Method: a log in three files."""
    values = [value for _, value in told_log()]
    rebuild_index(spark, write_log(tmp_path / "log", values, [4, 9]), tmp_path / "index", tmp_path / "work")
    expected = by_replica(values)
    assert expected.parties
    assert opened(tmp_path / "index") == (expected.entries, expected.position)


class KillingLog(ParquetLog, frozen=True):
    """A log whose reader is killed once in each job: in the middle of a task, by the operating system."""

    mark: str = ""

    def read(self, number: int) -> Columns:
        columns = super().read(number)
        if number == 1:
            try:
                os.mkdir(self.mark)
            except FileExistsError:
                pass
            else:
                os.kill(os.getpid(), signal.SIGKILL)
        return columns


@pytest.mark.thorough
def test_a_killed_task_changes_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: a task that dies is repeated, and what it left is not used. Method: SIGKILL to its worker."""
    log = _collisions(tmp_path)
    killing = KillingLog(log.topic_id, log.slices, log.end_offset, mark=str(tmp_path / "killed"))
    rebuild_index(spark, log, tmp_path / "index", tmp_path / "work", ranges=3)
    rebuild_index(spark, killing, tmp_path / "again", tmp_path / "work-again", ranges=3)
    assert (tmp_path / "killed").exists()
    assert verify_index(tmp_path / "again") == verify_index(tmp_path / "index")


def test_a_replica_goes_on_from_a_rebuilt_index(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: rebuilt up to an offset and then followed, it is the index that was followed all the way."""
    values = [*chain(), *chain()[1:]]
    log = write_log(tmp_path / "log", values)
    head = msgspec.structs.replace(log, end_offset=6)
    rebuild_index(spark, head, tmp_path / "index", tmp_path / "work")
    index = RocksIndex(tmp_path / "index")
    Applier(index, TOPIC).apply(list(enumerate(values))[6:])
    index.close()
    expected = by_replica(values)
    assert opened(tmp_path / "index") == (expected.entries, expected.position)


@pytest.mark.thorough
def test_a_rebuild_that_dies_leaves_no_index(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: half an index is never opened. Method: die between taking the tables in and writing the position."""
    monkeypatch.setattr("replica.index.tables.put_positions", lambda *_: 1 / 0)
    log = write_log(tmp_path / "log", chain())
    with pytest.raises(IndexUnreadable):
        rebuild_index(spark, log, tmp_path / "index", tmp_path / "work")
    with pytest.raises(IndexUnreadable, match="of 0 entries"):
        RocksIndex(tmp_path / "index")


def _collisions(tmp_path: Path) -> ParquetLog:
    """The benchmark's log, small and in four slices."""
    (path,) = write_big_log(tmp_path / "bench", 3_000)
    values = pq.read_table(path).column("value").to_pylist()
    return write_log(tmp_path / "log", values, [800, 1600, 2400])
