"""The report job: every table as a Parquet file, and one page with the charts that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.jobs.judge import Judged, judge_log
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.verdicts import conflicting_states, requests, verdicts
from pipeline.judging.lost import described
from pipeline.reports import tables, telemetry
from pipeline.reports.intervals import interval_s
from pipeline.reports.page import Subject, write_page
from pipeline.session import on_this_machine
from replica.notary.salvage import NO_SALVAGES, Salvages

VERDICTS = "verdicts"
_SOURCE = "Verdicts are judged again from the log itself; times are the stamps in its records."
_ROWS = "verdicts/ has a row for each request."


def write_report(
    spark: SparkSession,
    log: LogSlices,
    work: Path,
    folder: Path,
    histories: Sequence[Path],
    *,
    made_us: int,
    salvages: Salvages = NO_SALVAGES,
) -> Path:
    """Write the report into `folder`; returns the page. `histories`: what clients measured, perhaps nothing.

    `<table>.parquet` for each table, and `verdicts/`, a row for each counting request. `made_us`: the present time,
    microseconds UTC. `work`: a folder that every worker reaches. `salvages`: those that lost records name. Raises as
    `judge_log` does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    judged = judge_log(spark, log, work, salvages=salvages)
    decided = verdicts(spark, judged, requests(spark, log, judged.plan))
    rows = on_this_machine(folder / VERDICTS)
    decided.write.mode("overwrite").parquet(rows)
    with ExitStack() as stack:
        decided = spark.read.parquet(rows)
        found = _tables(spark, judged, decided)
        if histories:
            operations = telemetry.operations(spark, histories).persist()
            stack.callback(operations.unpersist)
            found |= {
                "latency": telemetry.latency(operations),
                "latency_histogram": telemetry.latency_histogram(operations),
                "estimates": telemetry.estimates(operations),
            }
        data = {name: frame.toArrow() for name, frame in found.items()}
    position, lost = judged.plan.position, [described(one, salvages) for one in judged.lost]
    epochs = len(judged.plan.barriers)
    subject = Subject(position.topic_id, position.offset, position.epoch, epochs, lost, _SOURCE, _ROWS)
    return write_page(folder, subject, data, made_us)


def _tables(spark: SparkSession, judged: Judged, decided: DataFrame) -> dict[str, DataFrame]:
    (span,) = decided.agg(F.min("stamp_us").alias("first"), F.max("stamp_us").alias("last")).collect()
    seconds = interval_s(span.first or 0, span.last or 0)
    return {
        "throughput": tables.throughput(decided, seconds).withColumn("seconds", F.lit(seconds)),
        "outcomes": tables.outcomes(decided),
        "parties": tables.parties(decided),
        "hot_states": tables.hot_states(conflicting_states(spark, judged), decided),
        "fail_overs": tables.fail_overs(decided, _epochs(spark, judged)),
    }


def _epochs(spark: SparkSession, judged: Judged) -> DataFrame:
    barriers = judged.plan.barriers
    ends = [offset for offset, _ in barriers[1:]] + [judged.plan.position.offset + 1]
    rows = [(at, end, one.epoch, one.replica) for (at, one), end in zip(barriers, ends, strict=True)]
    return spark.createDataFrame(rows, "from_offset bigint, until_offset bigint, epoch bigint, replica string")
