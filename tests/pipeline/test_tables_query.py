"""The tables' job on Spark: the rows of the other engine, each once, whatever is killed and whoever wrote before."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from pipeline.session import delta_jars
from pipeline.tables import query
from pipeline.tables.delta import commit_note
from pipeline.tables.query import Batch, SparkWriter, append_rows, run_query
from pipeline.tables.rows import COMPLETIONS, LOST, REQUESTS, SCHEMAS, VERDICTS
from pipeline.tables.upkeep import KEPT_MIN_H, Retention, maintain
from pipeline.tables.write import OnStep, open_judge, open_writer
from replica.notary.errors import ArchiveContended, InvariantBroken, SalvageMissing
from replica.notary.salvage import lost_record
from tests.pipeline.judged import TOPIC
from tests.pipeline.signed_log import longer_values

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not delta_jars(), reason="no jars of Delta Lake: `make setup` fetches them"),
]
VALUES = longer_values()


class Killed(BaseException):
    """The job dies here."""


def frame_of(spark: SparkSession, values: Sequence[bytes], first: int, end: int) -> DataFrame:
    offsets, some = pa.array(range(first, end), pa.int64()), pa.array(values[first:end], pa.binary())
    return spark.createDataFrame(pa.table({"offset": offsets, "value": some}))


@contextmanager
def writing(folder: Path, on_step: OnStep = lambda name: None, done: Callable[[Batch], None] = print) -> Iterator[Any]:
    """A writer of the tables in a folder, and its judge."""
    with open_judge(folder / "tables", folder / "index", TOPIC) as (tables, judge):
        yield SparkWriter(tables, judge, on_step, done), judge


def append(spark: SparkSession, folder: Path, end: int, on_step: OnStep = lambda name: None) -> None:
    """The next batch, up to an offset."""
    with writing(folder, on_step) as (writer, judge):
        writer.batch(frame_of(spark, VALUES, judge.position.offset + 1, end), 0)


def append_here(folder: Path, end: int) -> None:
    """The same by the other engine."""
    with open_writer(folder / "tables", folder / "index", TOPIC) as writer:
        writer.append(list(enumerate(VALUES))[writer.position.offset + 1 : end])


def found_in(folder: Path) -> dict[str, list[str]]:
    """All rows of each table."""
    tables = {name: DeltaTable(str(folder / "tables" / name)).to_pyarrow_table() for name in SCHEMAS}
    return {name: sorted(map(str, table.select(SCHEMAS[name].names).to_pylist())) for name, table in tables.items()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the other engine writes in one run."""
    folder = tmp_path_factory.mktemp("expected")
    append_here(folder, len(VALUES))
    return found_in(folder)


def test_both_engines_take_turns_on_one_set_of_tables(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    """Goal: the same rows, types and ledger offsets, and each commit names its engine. Method: a log in four parts."""
    append(spark, tmp_path, 6)
    append_here(tmp_path, 10)
    append(spark, tmp_path, 15)
    append_here(tmp_path, len(VALUES))
    assert found_in(tmp_path) == expected
    history = DeltaTable(str(tmp_path / "tables" / REQUESTS)).history()
    engines = [json.loads(one["userMetadata"])["notaryEngine"] for one in history if "userMetadata" in one]
    assert engines == ["process", "spark", "process", "spark"]
    kept = DeltaTable(str(tmp_path / "tables" / COMPLETIONS)).schema()
    assert [field.name for field in kept.fields] == SCHEMAS[COMPLETIONS].names


@pytest.mark.thorough
def test_a_job_that_dies_after_any_step_is_gone_on_with(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    """Goal: no row is missing or there twice, whatever was committed when the job died. Method: die after each step of
    a batch; go on in a batch that ends elsewhere, twice by this engine and else by the other one, which is quicker."""
    steps = [*sorted(SCHEMAS.keys() - {LOST, REQUESTS}), REQUESTS, "index"]
    for last in steps:
        folder = tmp_path / last

        def die(name: str, last: str = last) -> None:
            if name == last:
                raise Killed

        with pytest.raises(Killed):
            append(spark, folder, 15, die)
        if last in (steps[0], REQUESTS):
            append(spark, folder, len(VALUES))
        else:
            append_here(folder, len(VALUES))
        assert found_in(folder) == expected, last


def behind_another_name(folder: Path) -> Path:
    """A folder of another job, with an index of its own and the same tables."""
    (theirs := folder / "theirs").mkdir()
    (theirs / "tables").symlink_to(folder / "tables")
    return theirs


@pytest.mark.thorough
@pytest.mark.parametrize(("when", "theirs_end"), [("before", 11), ("before", 19), ("during", 11)])
def test_rows_that_came_since_a_table_was_opened_are_not_there_twice(
    spark: SparkSession,
    tmp_path: Path,
    expected: dict[str, list[str]],
    monkeypatch: pytest.MonkeyPatch,
    when: str,
    theirs_end: int,
) -> None:
    """Goal: a JVM that outlived its job, or a writer on another machine, doubles nothing. Method: another job brings
    the tables further after this one has opened them, before the first transaction begins or just before its commit;
    this one ends, and a new one goes on."""
    append(spark, tmp_path, 7)
    theirs = behind_another_name(tmp_path)

    def noting(*given: str) -> str:
        monkeypatch.setattr(query, "commit_note", commit_note)
        append_here(theirs, theirs_end)
        return commit_note(*given)

    with writing(tmp_path) as (writer, _):
        if when == "before":
            append_here(theirs, theirs_end)
        else:
            monkeypatch.setattr(query, "commit_note", noting)
        with pytest.raises(ArchiveContended, match="another process"):
            writer.batch(frame_of(spark, VALUES, 7, 15), 0)
    append(spark, tmp_path, len(VALUES))
    assert found_in(tmp_path) == expected


@pytest.mark.thorough
def test_a_compaction_between_look_and_commit_is_no_other_writer(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: upkeep does not end the job. Method: every table is maintained before each commit of a batch."""
    append_here(tmp_path, 6)
    append_here(tmp_path, 9)
    joined = Counter[str]()

    def noting(*given: str) -> str:
        for name in SCHEMAS:
            found = maintain(tmp_path / "tables", name, Retention(KEPT_MIN_H))
            joined[name] += found.files_before - found.files
        return commit_note(*given)

    monkeypatch.setattr(query, "COMMITS_AT_ONCE", 1)  # one compaction at a time
    monkeypatch.setattr(query, "commit_note", noting)
    append(spark, tmp_path, len(VALUES))
    assert joined[REQUESTS] > 0 and found_in(tmp_path) == expected


@pytest.mark.thorough
def test_a_table_that_has_the_rows_gets_no_commit(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: a batch that is repeated adds nothing, nor one without a record, which a log without news makes. Method:
    an empty batch; the rows of one table once more."""
    append(spark, tmp_path, 6)
    with writing(tmp_path) as (writer, judge):
        writer.batch(frame_of(spark, VALUES, 6, 6), 0)
        assert judge.position.offset == 5
    with open_judge(tmp_path / "tables", tmp_path / "other", TOPIC) as (tables, _):
        table = tables[VERDICTS]
        place = DeltaTable(str(tmp_path / "tables" / VERDICTS))
        append_rows(table, spark.createDataFrame(place.to_pyarrow_table()), 5)
        assert DeltaTable(str(tmp_path / "tables" / VERDICTS)).version() == place.version()


def streamed(spark: SparkSession, folder: Path, *edges: int) -> DataFrame:
    """The log as a stream: a file for each batch."""
    folder.mkdir(exist_ok=True)
    for first, end in pairwise(edges):
        some = {"offset": pa.array(range(first, end), pa.int64()), "value": pa.array(VALUES[first:end], pa.binary())}
        pq.write_table(pa.table(some), file := folder / f"{first}.parquet")
        os.utime(file, (first, first))  # Spark takes files by age
    stream = spark.readStream.schema("offset bigint, value binary").option("maxFilesPerTrigger", 1)
    return stream.parquet(folder.as_uri())


@pytest.mark.thorough
def test_a_query_that_is_told_to_stop_ends_its_batch(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    """Goal: a stop leaves nothing half written. Method: stop a query that would go on for ever in its first batch; then
    another one takes what there is, and ends by itself."""
    stopping, batches = Event(), list[Batch]()
    frame = streamed(spark, tmp_path / "log", 0, 9)
    with writing(tmp_path, lambda name: stopping.set(), batches.append) as (writer, judge):
        run_query(frame, writer, interval_s=1, stopping=stopping)
        assert judge.position.offset == 8 and [batch.offset for batch in batches] == [8]
    frame = streamed(spark, tmp_path / "rest", 9, len(VALUES))
    with writing(tmp_path) as (writer, _):
        run_query(frame, writer, interval_s=None, stopping=Event())
    assert found_in(tmp_path) == expected


@pytest.mark.slow
def test_tables_are_maintained_beside_a_query(
    spark: SparkSession, tmp_path: Path, expected: dict[str, list[str]]
) -> None:
    """Goal: compaction, vacuum and checkpoints beside Spark's commits lose and double no row, and neither ends the
    other. Method: a query in nine batches, and every table maintained again and again until it ends."""
    append(spark, tmp_path, 5)
    done, failures, joined = Event(), list[BaseException](), Counter[str]()

    def keep_up() -> None:
        try:
            while not done.is_set():
                for name in SCHEMAS:
                    found = maintain(tmp_path / "tables", name, Retention(KEPT_MIN_H))
                    joined[name] += found.files_before - found.files
        except BaseException as error:
            failures.append(error)

    upkeep = Thread(target=keep_up)
    upkeep.start()
    try:
        with writing(tmp_path) as (writer, _):
            run_query(
                streamed(spark, tmp_path / "log", *range(5, len(VALUES) + 1, 2)),
                writer,
                interval_s=None,
                stopping=Event(),
            )
    finally:
        done.set()
        upkeep.join()
    assert failures == []
    assert joined[REQUESTS] > 1 and joined[COMPLETIONS] > 1
    assert found_in(tmp_path) == expected


@pytest.mark.thorough
def test_what_ends_a_query_is_our_error(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: operators hear the reason, not Spark's trace. Method: a lost record without its salvage; a gap."""
    append(spark, tmp_path, 4)
    values = [*VALUES[:4], lost_record(4, 0, 0, bytes(32))]
    with writing(tmp_path) as (writer, _), pytest.raises(SalvageMissing):
        writer.batch(frame_of(spark, values, 4, 5), 0)
    frame = streamed(spark, tmp_path / "log", 6, 9)
    with writing(tmp_path) as (writer, _), pytest.raises(InvariantBroken, match="goes from offset 3 to 6"):
        run_query(frame, writer, interval_s=None, stopping=Event())
