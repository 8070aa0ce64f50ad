"""The tables of a report, from a summary: the same as those that Spark makes of the whole log. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.reports.intervals import HOT_REFUSED_MIN, TOP, interval_s
from pipeline.reports.summary import ACTIVATIONS, LOAD, PARTIES, STATES, Summary, span_us

_ACTIVATION = pa.schema(
    [
        ("from_offset", pa.int64()),
        ("until_offset", pa.int64()),
        ("epoch", pa.int64()),
        ("replica", pa.string()),
        ("requests", pa.int64()),
        ("first_us", pa.int64()),
        ("last_us", pa.int64()),
        ("pause_us", pa.int64()),
    ]
)


def figures(summary: Summary, epochs: pa.Table, end_offset: int) -> dict[str, pa.Table]:
    """The report's tables by name; tables.py has their columns. `epochs`: `log_offset`, `epoch` and `replica` of each
    barrier in force, by offset. `end_offset`: after the newest record.
    """
    found = {
        "throughput": _throughput(summary),
        "outcomes": _outcomes(summary[LOAD]),
        "parties": _parties(summary[PARTIES]),
        "hot_states": _hot_states(summary[STATES]),
        "fail_overs": _fail_overs(summary[ACTIVATIONS], epochs, end_offset),
    }
    return {name: table.combine_chunks() for name, table in found.items()}


def _throughput(summary: Summary) -> pa.Table:
    seconds = interval_s(*(span_us(summary) or (0, 0)))
    load = summary[LOAD]
    starts = pa.array(load["start_s"].to_numpy() // seconds * seconds * 1_000_000, pa.int64())
    sums = _grouped(load.append_column("at_us", starts), ["at_us", "outcome"], [("requests", "sum"), ("states", "sum")])
    ordered = sums.sort_by([("at_us", "ascending"), ("outcome", "ascending")])
    return ordered.append_column("seconds", pa.array(np.full(len(ordered), seconds, np.int32)))


def _outcomes(load: pa.Table) -> pa.Table:
    sums = _grouped(load, ["outcome"], [("requests", "sum"), ("repeated", "sum")])
    total = pc.sum(load["requests"]).as_py() or 0
    shares = pc.divide(sums["requests"].cast(pa.float64()), float(total or 1))
    return sums.append_column("share", shares).sort_by([("requests", "descending"), ("outcome", "ascending")])


def _parties(parties: pa.Table) -> pa.Table:
    sums = _grouped(
        parties,
        ["party"],
        [
            ("requests", "sum"),
            ("notarised", "sum"),
            ("conflicts", "sum"),
            ("states", "sum"),
            ("public_key", "count_distinct"),
            ("first_us", "min"),
            ("last_us", "max"),
        ],
    )
    named = sums.rename_columns(["keys" if name == "public_key" else name for name in sums.column_names])
    return named.sort_by([("requests", "descending"), ("party", "ascending")]).slice(0, TOP)


def _hot_states(states: pa.Table) -> pa.Table:
    sums = _grouped(
        states,
        ["state"],
        [("refused", "sum"), ("as_reference", "sum"), ("party", "count_distinct"), ("consumed_at", "min")],
    )
    named = sums.rename_columns(["parties" if name == "party" else name for name in sums.column_names])
    hot = named.filter(pc.greater_equal(named["refused"], HOT_REFUSED_MIN))
    return hot.sort_by([("refused", "descending"), ("state", "ascending")]).slice(0, TOP)


def _fail_overs(activations: pa.Table, epochs: pa.Table, end_offset: int) -> pa.Table:
    led = {row["from_offset"]: row for row in activations.to_pylist()}
    ends = [*epochs["log_offset"].to_pylist()[1:], end_offset]
    rows: list[dict[str, Any]] = []
    last_us: int | None = None
    for epoch, until in zip(epochs.to_pylist(), ends, strict=True) if len(epochs) else ():
        found = led.get(epoch["log_offset"], {"requests": 0, "first_us": None, "last_us": None})
        pause_us = None if last_us is None or found["first_us"] is None else found["first_us"] - last_us
        rows.append(
            found
            | {"from_offset": epoch["log_offset"], "until_offset": until, "pause_us": pause_us}
            | {"epoch": epoch["epoch"], "replica": epoch["replica"]}
        )
        last_us = max((one for one in (last_us, found["last_us"]) if one is not None), default=None)
    return pa.Table.from_pylist(rows, _ACTIVATION)


def _grouped(table: pa.Table, keys: list[str], values: list[tuple[str, str]]) -> pa.Table:
    sums = table.group_by(keys, use_threads=False).aggregate(values)
    return sums.select([*keys, *[f"{name}_{how}" for name, how in values]]).rename_columns(
        [*keys, *[name for name, _ in values]]
    )
