"""The page of a report: what it draws, and how it says times."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.reports import charts
from pipeline.reports.from_tables import report_from_tables
from pipeline.tables.read import TablesView
from pipeline.tables.write import open_writer
from tests.pipeline.judged import TOPIC
from tests.pipeline.lake_log import lake, lake_values

LINE = re.compile(r'<g id="line2d_\d+">\s*<path d="(M[^"]*L[^"]*)"[^>]*stroke: #2a7f62')


def strokes(at_s: list[int]) -> int:
    """In how many pieces the line of NOTARISED is drawn through these seconds, in intervals of one."""
    series = {"NOTARISED": ([at * 1_000_000 for at in at_s], [1.0 + at for at in at_s])}
    (path,) = LINE.findall(charts.over_time(series, "requests/s", 1))[:1]
    return str(path).count("M")


def test_no_line_is_drawn_through_time_without_load() -> None:
    """Goal: a pause looks like one. Method: the pieces of the line, with and without a pause."""
    assert strokes([0, 1, 2, 3]) == 1
    assert strokes([0, 1, 60, 61, 120, 121]) == 3


def test_times_are_times(tmp_path: Path) -> None:
    """Goal: nobody reads microseconds. Method: the report of a log whose times are known; its page and its files."""
    page = report_from_tables(TablesView(lake(tmp_path)), tmp_path / "out", made_us=1).page.read_text()
    assert "2026-03-02 10:05:30 UTC" in page and not re.search(r">\d{13,}<", page)
    parties = pq.read_table(tmp_path / "out" / "parties.parquet")
    assert parties.schema.field("first_at").type == pa.timestamp("us", tz="UTC")
    files = (tmp_path / "out").glob("*.parquet")
    assert not any(name.endswith("_us") for file in files for name in pq.read_schema(file).names)
    assert pq.read_table(tmp_path / "out" / "fail_overs.parquet")["pause_s"].to_pylist() == [None, None, 30.0]


def test_a_state_is_hot_when_several_requests_were_refused_for_it(tmp_path: Path) -> None:
    """Goal: a chart of hot states means something. Method: a log in which two requests were refused for one state, and
    the same log before the second."""
    for number, states in ((9, 0), (14, 1)):
        folder = tmp_path / str(number)
        with open_writer(folder / "tables", folder / "index", TOPIC) as writer:
            writer.append(list(enumerate(lake_values()))[:number])
        page = report_from_tables(TablesView(folder / "tables"), folder / "out", made_us=1).page.read_text()
        assert len(pq.read_table(folder / "out" / "hot_states.parquet")) == states
        assert ("States that most requests were refused for" in page) == bool(states)
