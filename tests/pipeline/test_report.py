"""The report's figures are the log's, and its page needs nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from pipeline.reports.intervals import INTERVALS_MAX, interval_s
from pipeline.reports.report import write_report
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import FIRST, PARTY, log_values

pytestmark = pytest.mark.spark


def test_figures_and_page(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: tables agree with the log; the page loads nothing. Method: the log with each kind of verdict."""
    log = write_log(tmp_path / "log", log_values(), [4])
    history = tmp_path / "history.jsonl"
    lines = [
        {"type": "invoke", "process": "p", "op": 1, "at_ns": 0, "tx_id": "aa"},
        {"type": "ok", "process": "p", "op": 1, "at_ns": 20_000_000, "estimate_s": 0.04},
        {"type": "invoke", "process": "p", "op": 2, "at_ns": 0, "tx_id": "aa"},
        {"type": "refused", "process": "p", "op": 2, "at_ns": 60_000_000, "code": "STATE_CONFLICT", "estimate_s": 0.04},
    ]
    history.write_text("".join(json.dumps(line) + "\n" for line in lines))
    folder = tmp_path / "report"
    page = write_report(spark, log, tmp_path / "work", folder, [history], made_us=1).read_text()

    def table(name: str) -> list[dict[str, object]]:
        return pq.read_table(folder / f"{name}.parquet").to_pylist()

    assert {row["outcome"]: (row["requests"], row["repeated"]) for row in table("outcomes")} == {
        "NOTARISED": (4, 1),
        "STATE_CONFLICT": (2, 0),
        "TIME_WINDOW_CLOSED": (1, 0),
        "TX_ID_REUSED": (1, 0),
    }
    assert [(row["party"], row["requests"], row["conflicts"], row["states"]) for row in table("parties")] == [
        (PARTY, 8, 2, 12)
    ]
    assert [(row["refused"], row["as_reference"], row["consumed_at"]) for row in table("hot_states")] == [(2, 1, FIRST)]
    assert [(row["epoch"], row["requests"], row["pause_s"]) for row in table("fail_overs")] == [
        (1, 0, None),
        (2, 8, None),
    ]
    assert table("estimates") == [{"operations": 2, "kept": 1, "p50_ratio": 1.0, "p90_ratio": pytest.approx(1.4)}]
    assert {row["answer"]: row["p50_s"] for row in table("latency")} == {"ok": 0.02, "STATE_CONFLICT": 0.06}
    assert sum(row["requests"] for row in table("throughput")) == 8  # type: ignore[misc]
    assert page.count("<svg") == 6
    assert not re.findall(r'(?:src|href)="(?!#)(?!http://www.w3.org)', page) and "<script" not in page


def test_intervals_are_bounded() -> None:
    """Goal: a chart has at most INTERVALS_MAX points. Method: spans from nothing to a century."""
    for span_s in (0, 1, 499, 501, 86_400, 10**7, 3 * 10**9):
        assert span_s / interval_s(0, span_s * 10**6) <= INTERVALS_MAX
