"""The page of a report, with charts inside it, and the tables beside it as Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jinja2 import Environment, PackageLoader, StrictUndefined

from pipeline.judging.lost import Lost
from pipeline.reports import charts

PAGE = "report.html"
_SHOWN_ROWS = 15
_TIME = pa.timestamp("us", tz="UTC")


class Subject(NamedTuple):
    """What a page is about: a log up to one of its records, and where the verdicts are from."""

    topic_id: str
    offset: int
    epoch: int
    epochs: int  # that came into force
    lost: Sequence[Lost]  # ranges
    source: str  # a sentence
    rows: str  # where there is a row for each request, a sentence


def write_page(folder: Path, subject: Subject, data: dict[str, pa.Table], made_us: int) -> Path:
    """Write each table as a Parquet file, and the page; returns the page. `made_us`: the time now, microseconds UTC.

    In the files and on the page times are times: `first_us` is `first_at`, and a pause has seconds."""
    for name, table in data.items():
        pq.write_table(readable(table), folder / f"{name}.parquet")
    page = folder / PAGE
    page.write_text(_render(subject, data, made_us), encoding="utf-8")
    return page


def _render(subject: Subject, data: dict[str, pa.Table], made_us: int) -> str:
    """The page: charts as SVG inside it, tables as they are; nothing is loaded from anywhere."""
    environment = Environment(
        loader=PackageLoader("pipeline.reports"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template("report.html.j2").render(
        made=charts.instant(datetime.fromtimestamp(made_us // 1_000_000, UTC)),
        subject=subject,
        facts={
            "records": subject.offset + 1,
            "counting requests": sum(data["outcomes"].column("requests").to_pylist()),
            "requests refused for a state": _count(data["outcomes"], "STATE_CONFLICT"),
            "epochs in force": subject.epochs,
            "epoch": subject.epoch,
            **({"lost records": sum(one.records for one in subject.lost)} if subject.lost else {}),
        },
        charts=_charts(data),
        tables={
            name: [_shown(row) for row in readable(table.slice(0, _SHOWN_ROWS)).to_pylist()]
            for name, table in data.items()
            if name not in ("throughput", "latency_histogram")
        },
    )


def readable(table: pa.Table) -> pa.Table:
    """Microseconds as what they are: timestamps in UTC, and seconds of a pause."""
    columns = {}
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name == "pause_us":
            columns["pause_s"] = pc.divide(column.cast(pa.float64()), 1e6)
        elif name.endswith("_us"):
            columns["at" if name == "at_us" else f"{name.removesuffix('_us')}_at"] = column.cast(_TIME)
        else:
            columns[name] = column
    return pa.table(columns)


def _shown(row: dict[str, Any]) -> dict[str, str]:
    return {name.replace("_", " "): _text(value) for name, value in row.items()}


def _text(value: Any) -> str:
    match value:
        case None:
            return "–"
        case datetime():
            return charts.instant(value)
        case float():
            return f"{value:.4g}"
        case _:
            return str(value)


def _charts(data: dict[str, pa.Table]) -> dict[str, str]:
    throughput, activations = data["throughput"].to_pylist(), data["fail_overs"].to_pylist()
    interval_s = throughput[0]["seconds"] if throughput else 1
    taken_over = [row["first_us"] for row in activations if row["first_us"] is not None]
    made = {
        "Requests a second, by verdict": charts.over_time(_rates(throughput), "requests/s", interval_s, taken_over),
        "Share of requests refused": charts.over_time(
            {"STATE_CONFLICT": _shares(throughput, "STATE_CONFLICT")}, "share", interval_s, taken_over
        ),
        "Parties with most requests": _bars(data["parties"], "party", "requests"),
        "Pause before each epoch's first request": charts.bars(
            [f"epoch {row['epoch']}, {row['replica']}" for row in activations],
            [(row["pause_us"] or 0) / 1e6 for row in activations],
            "seconds without a request",
        ),
    }
    if len(data["hot_states"]):
        made["States that most requests were refused for"] = _bars(data["hot_states"], "state", "refused")
    if "latency_histogram" in data:
        histogram = data["latency_histogram"]
        made["Latency that clients measured"] = charts.histogram(
            histogram.column("up_to_s").to_pylist(), histogram.column("operations").to_pylist(), "seconds"
        )
    return made


def _rates(rows: list[dict[str, Any]]) -> dict[str, tuple[list[int], list[float]]]:
    """The rate of each outcome in every interval with load: 0 where others alone came."""
    rates: dict[str, dict[int, float]] = {}
    for row in rows:
        rates.setdefault(row["outcome"], {})[row["at_us"]] = row["requests"] / row["seconds"]
    with_load = sorted({row["at_us"] for row in rows})
    return {name: (with_load, [of_one.get(at_us, 0.0) for at_us in with_load]) for name, of_one in rates.items()}


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
