"""The report job: every table as a Parquet file, and one page with the charts that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.jobs.judge import Judged, judge_log
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.verdicts import conflicting_states, requests, verdicts
from pipeline.reports import charts, tables, telemetry

VERDICTS = "verdicts"
PAGE = "report.html"
_SHOWN_ROWS = 15


def write_report(
    spark: SparkSession, log: LogSlices, work: Path, folder: Path, histories: Sequence[Path], *, made_us: int
) -> Path:
    """Write the report into `folder`; returns the page. `histories`: what clients measured, perhaps nothing.

    `<table>.parquet` for each table, and `verdicts/`, a row for each counting request. `made_us`: the present time,
    microseconds UTC. `work`: a folder that every worker reaches. Raises as `judge_log` does.
    """
    folder.mkdir(parents=True, exist_ok=True)
    judged = judge_log(spark, log, work, closed=True)
    decided = verdicts(spark, judged, requests(spark, log, judged.plan))
    decided.write.mode("overwrite").parquet(str(folder / VERDICTS))
    with ExitStack() as stack:
        decided = spark.read.parquet(str(folder / VERDICTS))
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
    for name, table in data.items():
        pq.write_table(table, folder / f"{name}.parquet")
    page = folder / PAGE
    page.write_text(render(judged, data, made_us), encoding="utf-8")
    return page


def _tables(spark: SparkSession, judged: Judged, decided: DataFrame) -> dict[str, DataFrame]:
    (span,) = decided.agg(F.min("stamp_us").alias("first"), F.max("stamp_us").alias("last")).collect()
    seconds = tables.interval_s(span.first or 0, span.last or 0)
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


def render(judged: Judged, data: dict[str, pa.Table], made_us: int) -> str:
    """The page: charts as SVG inside it, tables as they are; nothing is loaded from anywhere."""
    environment = Environment(
        loader=PackageLoader("pipeline.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    position = judged.plan.position
    return environment.get_template("report.html.j2").render(
        made=charts.instant(made_us),
        position=position,
        facts={
            "records": position.offset + 1,
            "counting requests": sum(data["outcomes"].column("requests").to_pylist()),
            "requests refused for a state": _count(data["outcomes"], "STATE_CONFLICT"),
            "epochs in force": len(judged.plan.barriers),
            "epoch": position.epoch,
        },
        charts=_charts(data),
        tables={name: (table.column_names, table.slice(0, _SHOWN_ROWS).to_pylist()) for name, table in data.items()
                if name not in ("throughput", "latency_histogram")},
    )  # fmt: skip


def _charts(data: dict[str, pa.Table]) -> dict[str, str]:
    throughput, activations = data["throughput"].to_pylist(), data["fail_overs"].to_pylist()
    taken_over = [row["first_us"] for row in activations if row["first_us"] is not None]
    made = {
        "Requests a second, by verdict": charts.over_time(_rates(throughput), "requests/s", taken_over),
        "Share of requests refused": charts.over_time(
            {"STATE_CONFLICT": _shares(throughput, "STATE_CONFLICT")}, "share", taken_over
        ),
        "Parties with most requests": _bars(data["parties"], "party", "requests"),
        "States that most requests were refused for": _bars(data["hot_states"], "state", "refused"),
        "Pause before each epoch's first request": charts.bars(
            [f"epoch {row['epoch']}, {row['replica']}" for row in activations],
            [(row["pause_us"] or 0) / 1e6 for row in activations],
            "seconds without a request",
        ),
    }
    if "latency_histogram" in data:
        histogram = data["latency_histogram"]
        made["Latency that clients measured"] = charts.histogram(
            histogram.column("up_to_s").to_pylist(), histogram.column("operations").to_pylist(), "seconds"
        )
    return made


def _rates(rows: list[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    series: dict[str, tuple[list[int], list[float]]] = {}
    for row in rows:
        at_us, values = series.setdefault(row["outcome"], ([], []))
        at_us.append(row["at_us"])
        values.append(row["requests"] / row["seconds"])
    return series


def _shares(rows: list[dict[str, Any]], outcome: str) -> tuple[list[int], list[float]]:
    all_of: dict[int, int] = {}
    some_of: dict[int, int] = {}
    for row in rows:
        all_of[row["at_us"]] = all_of.get(row["at_us"], 0) + row["requests"]
        if row["outcome"] == outcome:
            some_of[row["at_us"]] = row["requests"]
    return list(all_of), [some_of.get(at_us, 0) / total for at_us, total in all_of.items()]


def _bars(table: pa.Table, names: str, values: str) -> str:
    top = table.slice(0, _SHOWN_ROWS)
    return charts.bars(top.column(names).to_pylist(), top.column(values).to_pylist(), values)


def _count(outcomes: pa.Table, outcome: str) -> int:
    return sum(row["requests"] for row in outcomes.to_pylist() if row["outcome"] == outcome)
