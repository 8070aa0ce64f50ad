"""A report from the tables: what an earlier report had is not read again, and no byte differs for it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession

from pipeline.reports import summary
from pipeline.reports.from_tables import Made, report_from_tables
from pipeline.reports.page import PAGE
from pipeline.reports.report import write_report
from pipeline.reports.state import NAME, encode_tables, read_state, write_state
from pipeline.tables.read import TablesView
from pipeline.tables.rows import CONFLICTS, REQUESTS, SCHEMAS, VERDICTS
from pipeline.tables.write import open_writer
from replica.notary.errors import InvariantBroken
from tests.pipeline.judged import TOPIC
from tests.pipeline.log_files import write_log
from tests.pipeline.random_logs import logs
from tests.pipeline.signed_log import FIRST, log_values, longer_values

PUT_BACK = "the tables were put back to an earlier state since the one before"
FIGURES = ("throughput", "outcomes", "parties", "hot_states", "fail_overs")


def append(folder: Path, values: Sequence[bytes], until: int, topic: str = TOPIC) -> None:
    """Let the tables' job add the log's records below an offset."""
    with open_writer(folder / "tables", folder / "index", topic) as writer:
        records = list(enumerate(values))[writer.position.offset + 1 : until]
        if records:
            writer.append(records)


def report(folder: Path, out: str, stretch_records: int = 1 << 20) -> Made:
    """A report in a folder of its own; its time is always the same."""
    tables = TablesView(folder / "tables")
    return report_from_tables(tables, folder / out, made_us=1, stretch_records=stretch_records)


def written(folder: Path) -> dict[str, bytes]:
    """All files of a report, its state included."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.thorough
@settings(max_examples=6, deadline=None)
@given(logs(max_size=30), st.lists(st.integers(1, 30), max_size=3), st.integers(1, 12))
def test_wherever_a_report_stopped_the_next_one_has_the_bytes_of_a_whole_one(
    values: list[bytes], cuts: list[int], stretch: int
) -> None:
    """Goal: going on from a state changes no byte. Method: random logs, a report at each of several random ends."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        for end in sorted({*[cut for cut in cuts if cut < len(values)], len(values)}):
            append(folder, values, end)
            report(folder, "grown", stretch)
        report(folder, "whole")
        assert written(folder / "grown") == written(folder / "whole")


@given(
    st.lists(
        st.tuples(st.integers(0, 3 * 10**9), st.sampled_from("ab"), st.sampled_from(["NOTARISED", "STATE_CONFLICT"])),
        max_size=20,
    ),
    st.data(),
)
def test_summaries_add_up_over_any_span_of_time(requests: list[tuple[int, str, str]], data: st.DataObject) -> None:
    """Goal: intervals get longer as the log's span grows, and counts still add up. Method: stamps of up to a century,
    in any order, cut anywhere; the bytes of the whole."""
    cut = data.draw(st.integers(0, len(requests)))
    parts = [rows_of(requests[:cut], 0), rows_of(requests[cut:], cut)]
    whole = encode_tables(summary.merged([rows_of(requests, 0)]))
    assert encode_tables(summary.merged(parts)) == whole
    assert encode_tables(summary.merged([summary.EMPTY, *reversed(parts)])) == whole


def rows_of(requests: Sequence[tuple[int, str, str]], first: int) -> summary.Summary:
    """The summary of requests with these stamps (seconds), parties and outcomes; refused ones for one state each."""
    offsets = range(first + 1, first + 1 + len(requests))
    rest = {"public_key": b"k", "inputs": ["s"], "referenced_states": []}
    rows = [
        rest | {"log_offset": at, "stamp_at": stamp_s * 10**6, "party": party}
        for at, (stamp_s, party, _) in zip(offsets, requests, strict=True)
    ]
    verdicts = [
        {"log_offset": at, "outcome": outcome, "notarised_offset": at if outcome == "NOTARISED" else None}
        for at, (_, _, outcome) in zip(offsets, requests, strict=True)
    ]
    conflicts = [
        {"log_offset": at, "state": party, "usage": "input", "consumed_offset": 1}
        for at, (_, party, outcome) in zip(offsets, requests, strict=True)
        if outcome == "STATE_CONFLICT"
    ]
    return summary.summary_of(_rows(REQUESTS, rows), _rows(VERDICTS, verdicts), _rows(CONFLICTS, conflicts), [0])


def _rows(name: str, rows: list[dict[str, object]]) -> pa.Table:
    full = [dict.fromkeys(SCHEMAS[name].names) | row for row in rows]
    return pa.Table.from_pylist(full, pa.schema([field.with_nullable(True) for field in SCHEMAS[name]]))


def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    """Goal: files that the report before had read are not opened. Method: empty them in between."""
    append(tmp_path, longer_values(), 9)
    assert report(tmp_path, "out").anew == "there is no earlier one"
    old = {name: set((tmp_path / "tables" / name).rglob("*.parquet")) for name in (VERDICTS, CONFLICTS)}
    append(tmp_path, longer_values(), len(longer_values()))
    shutil.copytree(tmp_path / "tables", tmp_path / "kept")
    for paths in old.values():
        for path in paths:
            path.write_bytes(b"")
    made = report(tmp_path, "out")
    assert (made.after, made.offset, made.anew) == (8, len(longer_values()) - 1, None)
    shutil.rmtree(tmp_path / "tables")
    (tmp_path / "kept").rename(tmp_path / "tables")
    report(tmp_path, "whole")
    assert written(tmp_path / "out") == written(tmp_path / "whole")


@pytest.mark.thorough
def test_a_state_that_is_damaged_or_foreign_is_made_anew(tmp_path: Path) -> None:
    """Goal: a state is used only if it is whole, and of these tables as they are. Method: each of the ways it may be
    wrong; after each the report is that of the log, and says why it read everything."""
    values = longer_values()
    append(tmp_path, values, 9)
    report(tmp_path, "out")
    early = (tmp_path / "out" / NAME).read_bytes()
    append(tmp_path, values, len(values))
    report(tmp_path, "whole")
    good = (tmp_path / "whole" / NAME).read_bytes()
    assert report(tmp_path, "whole").anew is None

    def after(raw: bytes) -> str | None:
        (tmp_path / "out" / NAME).write_bytes(raw)
        why = report(tmp_path, "out").anew
        assert written(tmp_path / "out") == written(tmp_path / "whole")
        return why

    assert after(early) is None
    assert after(b"") == after(good[:-1]) == "its state is damaged"
    for at in range(0, len(good), 97):
        (tmp_path / "out" / NAME).write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
        assert read_state(tmp_path / "out") == "its state is damaged"
    state, _ = read_state(tmp_path / "whole")
    assert not isinstance(state, str) and state.newest is not None
    for other, why in [
        ({"version": 3}, "its state is of another release"),
        ({"tables": {}}, "its state is not one"),
        ({"topic_id": "topic-2"}, "the one before is of other tables"),
        ({"table_ids": {}}, "the one before is of other tables"),
        ({"offset": 99}, PUT_BACK),
        ({"newest": _replaced(state.newest, content_digest=b"other")}, PUT_BACK),
    ]:
        write_state(tmp_path / "out", _replaced(state, **other))
        assert after((tmp_path / "out" / NAME).read_bytes()) == why


def _replaced(struct, **changes):  # type: ignore[no-untyped-def]
    return type(struct)(**{name: getattr(struct, name) for name in struct.__struct_fields__} | changes)


@pytest.mark.thorough
def test_tables_that_were_removed_are_counted_anew(tmp_path: Path) -> None:
    """Goal: a report never mixes two tables. Method: the tables are made anew, of a log that differs."""
    append(tmp_path, log_values(), len(log_values()))
    report(tmp_path, "out")
    shutil.rmtree(tmp_path / "tables")
    shutil.rmtree(tmp_path / "index")
    append(tmp_path, longer_values(), len(longer_values()))
    assert report(tmp_path, "out").anew == "the one before is of other tables"
    report(tmp_path, "whole")
    assert written(tmp_path / "out") == written(tmp_path / "whole")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("names", "rows"),
    [((VERDICTS,), "log_offset = 6"), ((CONFLICTS,), "log_offset = 5"), ((VERDICTS, REQUESTS), "log_offset = 7")],
    ids=["a verdict", "the states in the way of a request", "a refused request but not the states in its way"],
)
def test_rows_that_somebody_deleted_are_found(tmp_path: Path, names: tuple[str, ...], rows: str) -> None:
    """Goal: no figure is made of half the rows. Method: delete some, which others need."""
    append(tmp_path, log_values(), len(log_values()))
    for name in names:
        DeltaTable(str(tmp_path / "tables" / name)).delete(rows)
    with pytest.raises(InvariantBroken):
        report(tmp_path, "out")


@pytest.mark.thorough
def test_states_in_the_way_that_were_added_twice_are_found(tmp_path: Path) -> None:
    """Goal: no refusal is counted twice. Method: a refused request's row of conflicts, twice."""
    append(tmp_path, log_values(), len(log_values()))
    folder = str(tmp_path / "tables" / CONFLICTS)
    write_deltalake(folder, DeltaTable(folder).to_pyarrow_table(), mode="append")
    with pytest.raises(InvariantBroken):
        report(tmp_path, "out")


def test_a_table_of_an_older_release_lacks_a_column(tmp_path: Path) -> None:
    """Goal: a figure that older rows do not have is left empty. Method: conflicts without `consumed_offset`."""
    append(tmp_path, log_values(), len(log_values()))
    rows = DeltaTable(str(tmp_path / "tables" / CONFLICTS)).to_pyarrow_table()
    assert [row["consumed_offset"] for row in sorted(rows.to_pylist(), key=lambda row: str(row["log_offset"]))] == [
        FIRST,
        FIRST,
    ]
    view = TablesView(tmp_path / "tables")
    older = view._views[CONFLICTS].rows(pa.schema([("log_offset", pa.int64()), ("no_such", pa.int64())]), -1, 99)
    assert older["no_such"].to_pylist() == [None, None]


@pytest.mark.spark
def test_the_figures_are_those_of_spark(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: two implementations agree, and repeated successes are named. Method: a log that was led twice on Spark, and
    its tables in two runs and two reports."""
    values = longer_values()
    for end in (9, len(values)):
        append(tmp_path, values, end)
        report(tmp_path, "tables-report")
    log = write_log(tmp_path / "log", values, [13])
    write_report(spark, log, tmp_path / "work", tmp_path / "spark-report", [], made_us=1)
    for name in FIGURES:
        ours, theirs = (pq.read_table(tmp_path / f"{by}-report" / f"{name}.parquet") for by in ("tables", "spark"))
        assert ours.to_pylist() == theirs.to_pylist(), name
        assert ours.schema.names == theirs.schema.names and ours.schema.types == theirs.schema.types, name
    outcomes = pq.read_table(tmp_path / "spark-report" / "outcomes.parquet").to_pylist()
    assert {row["outcome"]: (row["requests"], row["repeated"]) for row in outcomes} == {
        "NOTARISED": (7, 3),
        "STATE_CONFLICT": (3, 0),
        "DEDUPLICATED": (1, 1),
        "COMMAND_ID_REUSED": (1, 0),
        "TIME_WINDOW_CLOSED": (1, 0),
        "TX_ID_REUSED": (1, 0),
    }
    pages = [(tmp_path / f"{by}-report" / PAGE).read_text() for by in ("tables", "spark")]
    assert len(pages[0]) > 10_000 and pages[0].count("<svg") == pages[1].count("<svg")
