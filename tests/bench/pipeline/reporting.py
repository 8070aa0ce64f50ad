"""A report of what came since the one before, against a whole one: both from the same tables in the lake.

The tables are laid out by numpy, many commits long, as the tables' job leaves them: parties with a few keys each, some
requests refused, a few epochs. A hundredth of the records comes after the first report. Then both reports are made, in
turns, in one process that has made one before. Both must be equal, byte for byte. The ratio is that of processor time
(of all threads), so that what else the machine does counts for little.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from time import monotonic, process_time

import numpy as np
import pyarrow as pa

from pipeline.reports.from_tables import report_from_tables
from pipeline.reports.state import NAME
from pipeline.tables.delta import Table
from pipeline.tables.read import TablesView
from pipeline.tables.rows import COMPLETIONS, CONFLICTS, DAY_US, EPOCHS, REQUESTS, SCHEMAS, VERDICTS
from replica.notary.errors import Code
from replica.notary.outcomes import NOTARISED
from tests.bench.pipeline.big_log import Array
from tests.bench.report import Report

TOPIC_ID = "bench-topic"
NEW_SHARE = 0.01
RUNS = 3
COMMIT_ROWS = 100_000
PARTIES, KEYS_EACH = 200, 2
REFUSED = 0.02  # share of requests
HOT_STATES = 50_000  # that requests are refused for
EPOCH_RECORDS = 1_000_000
RATE_PER_S = 5_000
_FIRST_STAMP_US = 1_763_700_000_000_000


def measure_report(folder: Path, report: Report, records: int) -> None:
    """Time both kinds of report on tables with this many rows; the figures and the ratio."""
    report.section(f"Report of {records:,} records from the tables, {NEW_SHARE:.0%} of them new")
    tables = {name: Table(folder / "tables" / name, SCHEMAS[name], TOPIC_ID) for name in SCHEMAS if name != COMPLETIONS}
    Table(folder / "tables" / COMPLETIONS, SCHEMAS[COMPLETIONS], TOPIC_ID)
    before = records - round(records * NEW_SHARE)
    _append(tables, 0, before)
    _make(folder, "grown")
    shutil.copy(folder / "grown" / NAME, folder / NAME)
    _append(tables, before, records)
    took_s: dict[str, list[float]] = {"grown": [], "whole": []}
    busy_s: dict[str, list[float]] = {"grown": [], "whole": []}
    for _ in range(RUNS):
        shutil.copy(folder / NAME, folder / "grown" / NAME)
        shutil.rmtree(folder / "whole", ignore_errors=True)
        for name, runs in took_s.items():
            began_s, began_busy_s = monotonic(), process_time()
            _make(folder, name)
            runs.append(monotonic() - began_s)
            busy_s[name].append(process_time() - began_busy_s)
    if _files(folder / "grown") != _files(folder / "whole"):
        raise SystemExit("the two reports are not equal")
    report.add("report_records", records, "records in the tables", f"{records:,}")
    report.add_runs("report_whole_s", took_s["whole"], "a whole report", "s")
    report.add_runs("report_incremental_s", took_s["grown"], "a report that goes on", "s")
    whole_s = report.add_runs("report_whole_cpu_s", busy_s["whole"], "processor time: a whole report", "s")
    grown_s = report.add_runs("report_incremental_cpu_s", busy_s["grown"], "processor time: a report that goes on", "s")
    ratio = grown_s / whole_s
    report.add("report_incremental_ratio", round(ratio, 4), "processor time, the second by the first", f"{ratio:.2%}")
    shutil.rmtree(folder)


def _make(folder: Path, name: str) -> None:
    report_from_tables(TablesView(folder / "tables"), folder / name, made_us=1)


def _files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def _append(tables: dict[str, Table], start: int, end: int) -> None:
    for first in range(start, end, COMMIT_ROWS):
        rows = _rows(np.arange(first, min(first + COMMIT_ROWS, end)))
        for name in (VERDICTS, CONFLICTS, EPOCHS, REQUESTS):
            tables[name].append(rows[name], min(first + COMMIT_ROWS, end) - 1)


def _rows(offsets: Array) -> dict[str, pa.Table]:
    """The rows of every table for these log offsets; a barrier in place of a request now and then."""
    rng = np.random.default_rng(int(offsets[0]))
    barriers, requests = offsets[offsets % EPOCH_RECORDS == 0], offsets[offsets % EPOCH_RECORDS != 0]
    refused = rng.random(len(requests)) < REFUSED
    party = rng.integers(0, PARTIES, len(requests))
    keys = np.array([bytes([number]) * 32 for number in range(KEYS_EACH)], "S32")
    states = rng.integers(0, 256, (len(requests), 2, 32), np.uint8)
    text = np.array([f"{one.tobytes().hex()}:0" for one in states.reshape(-1, 32)], object)
    inputs = pa.ListArray.from_arrays(pa.array(np.arange(0, len(text) + 1, 2), pa.int32()), pa.array(text, pa.string()))
    tx_ids = pa.array([one.tobytes() for one in states[:, 0]], pa.binary())
    lost = requests[refused]
    names = [f"O=Party {number:03},L=London,C=GB" for number in range(PARTIES)]
    hot = rng.zipf(1.5, len(lost)) % HOT_STATES
    columns = {
        VERDICTS: _keys(requests)
        | {
            "judged_at": _stamps(requests),
            "tx_id": tx_ids,
            "outcome": pa.array(np.where(refused, Code.STATE_CONFLICT.name, NOTARISED)),
            "notarised_offset": pa.array(requests, mask=refused),
        },
        CONFLICTS: _keys(lost)
        | {
            "state": pa.array([f"{number:064x}:0" for number in hot]),
            "usage": pa.array(["input"] * len(lost), pa.string()),
            "consumed_offset": pa.array(hot + 1),
        },
        EPOCHS: _keys(barriers)
        | {"epoch": pa.array(barriers // EPOCH_RECORDS + 1), "replica": pa.array(["r1"] * len(barriers), pa.string())},
        REQUESTS: _keys(requests)
        | {
            "stamp_at": _stamps(requests),
            "tx_id": tx_ids,
            "content_digest": tx_ids,
            "inputs": inputs,
            "referenced_states": pa.array([[]] * len(requests), pa.list_(pa.string())),
            "party": pa.array([names[number] for number in party]),
            "public_key": pa.array(keys[rng.integers(0, KEYS_EACH, len(requests))].tolist(), pa.binary()),
            "sequence": pa.array(requests),
        },
    }
    return {name: _whole(SCHEMAS[name], found) for name, found in columns.items()}


def _stamp_us(offsets: Array) -> Array:
    return _FIRST_STAMP_US + offsets * (1_000_000 // RATE_PER_S)


def _stamps(offsets: Array) -> pa.Array:
    return pa.array(_stamp_us(offsets)).cast(pa.timestamp("us", "UTC"))


def _keys(offsets: Array) -> dict[str, pa.Array]:
    days = pa.array((_stamp_us(offsets) // DAY_US).astype(np.int32))
    return {"log_offset": pa.array(offsets), "day": days.cast(pa.date32())}


def _whole(schema: pa.Schema, columns: dict[str, pa.Array]) -> pa.Table:
    """Columns that no report reads are null."""
    rows = len(columns["log_offset"])
    return pa.table({field.name: columns.get(field.name, pa.nulls(rows, field.type)) for field in schema}).cast(schema)
