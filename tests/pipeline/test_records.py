"""Rows of the log as columns: what Spark makes of the log is what a replica makes of it."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, SparkSession

from pipeline.records import COLUMNS, decoded, read_rows, starts_of, typed_batches
from pipeline.survey import survey_of
from replica.notary.errors import InvariantBroken
from replica.notary.position import begin
from replica.notary.reading import CountedRequest, read_records
from replica.notary.requests import TimeWindow
from tests.unit.notary_logs import TOPIC, Log, LogMaker, activation, logs, request_of, run_product, settled, split

pytestmark = pytest.mark.spark


def one_of_each() -> LogMaker:
    """A log with every kind of record, counting and void."""
    maker = LogMaker()
    maker.barrier(1)
    maker.submit(request_of(1, (1, 2), (3,), TimeWindow(5, None)), stamp_us=70)
    maker.submit(request_of(2), sequence=0)  # a repeat
    maker.settle(settled(4, "c4"))
    maker.raw(b"nonsense")
    maker.barrier(2)
    maker.submit(request_of(3), activation_id=activation(1))
    maker.submit(request_of(5, (9,)), stamp_us=60)
    return maker


def frame(spark: SparkSession, log: Log, partitions: int) -> DataFrame:
    """The log as a source gives it: stretches in order."""
    values = dict(log)

    def rows(batches):  # type: ignore[no-untyped-def]
        import pyarrow as pa

        for batch in batches:
            offsets = batch.column(0).to_pylist()
            yield pa.RecordBatch.from_pydict({"offset": offsets, "value": [values[offset] for offset in offsets]})

    return spark.range(0, len(log), 1, partitions).mapInArrow(rows, "offset bigint, value binary")


@pytest.mark.parametrize("partitions", [1, 3])
def test_spark_reads_what_a_replica_reads(spark: SparkSession, partitions: int) -> None:
    """Goal: partitions change nothing. Method: compare kinds, reasons and judged times with the replica's reading."""
    log = one_of_each().log
    columns = ["offset", "kind", "void_reason", "epoch", "judged_us", "tx_id", "inputs", "from_us"]
    rows = decoded(frame(spark, log, partitions), columns).orderBy("offset").collect()
    run = run_product(log)
    assert [row.offset for row in rows] == list(range(len(log)))
    assert {row.offset: row.void_reason for row in rows if row.kind == "void"} == run.voids
    assert {row.offset: row.judged_us for row in rows if row.kind in ("request", "settlement")} == {
        offset: entry.judged_us for offset, entry in run.counted.items()
    }
    assert [row.epoch for row in rows] == [1, 1, 1, 1, 1, 2, 2, 2]
    assert [bytes(ref) for ref in rows[1].inputs] == list(request_of(1, (1, 2), (3,)).inputs)
    assert (bytes(rows[1].tx_id), rows[1].from_us) == (request_of(1).tx_id, 5)


def test_every_column_can_be_asked_for(spark: SparkSession) -> None:
    """Goal: types of Spark and Arrow agree. Method: ask for all columns of a log with every kind of record."""
    rows = decoded(frame(spark, one_of_each().log, 2), list(COLUMNS)).orderBy("offset").collect()
    assert (rows[0].replica, rows[0].database) == ("R1", "postgres:1:1")
    assert rows[3].commands[0].command_id == "c4"
    assert rows[7].act_as == ["O=Bank A,L=London,C=GB"]


def test_a_missing_record_is_refused(spark: SparkSession) -> None:
    """Goal: no gap goes unnoticed. Method: drop a record inside a partition, and one between two."""
    rows = frame(spark, one_of_each().log, 2)
    for missing in (2, 4):
        with pytest.raises(Exception, match="the log goes from offset") as caught:
            decoded(rows.where(f"offset != {missing}"), ["kind"]).collect()
        assert isinstance(caught.value, InvariantBroken) or "InvariantBroken" in str(caught.value)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(logs(), st.lists(st.integers(0, 45), max_size=4))
def test_any_log_cut_anywhere_has_the_replicas_rows(log: Log, cuts: list[int]) -> None:
    """Goal: the columns are those of a replica that reads the whole log. Method: random logs, the pure part alone."""
    stretches = [stretch for stretch in split(log, cuts) if stretch]
    surveys = [survey for stretch in stretches if (survey := survey_of(stretch)) is not None]
    by_first = {stretch[0][0]: stretch for stretch in stretches}
    starts = starts_of(
        surveys, begin(TOPIC), lambda survey, position: read_records(position, by_first[survey.first]).position
    )
    found = [
        row
        for stretch in stretches
        for batch in typed_batches(stretch, starts, ["offset", "kind", "void_reason", "judged_us"])
        for row in batch.to_pylist()
    ]
    expected, _ = read_rows(begin(TOPIC), log)
    assert found == [
        {
            "offset": row.offset,
            "kind": row.kind,
            "void_reason": None if row.void is None else row.void.value,
            "judged_us": None if row.counted is None else row.counted.judged_us,
        }
        for row in expected
    ]
    requests = [row.offset for row in expected if isinstance(row.counted, CountedRequest)]
    assert requests == sorted(run_product(log).verdicts)
