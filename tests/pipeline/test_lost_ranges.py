"""Jobs go on across a lost range: what is after it is judged with what the salvage knows, and they say what is lost."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.audit.audit import Scope, audit_log
from pipeline.audit.trace import trace
from pipeline.judging import subjects
from pipeline.judging.lost import Lost
from pipeline.reports.from_tables import report_from_tables
from pipeline.reports.report import write_report
from pipeline.tables import trace as from_tables
from pipeline.tables.read import TablesView, lost_in
from pipeline.tables.settled import Question, Settled, settle
from pipeline.tables.write import open_writer
from replica.notary.canonical import content_digest
from replica.notary.errors import SalvageMissing
from replica.notary.position import encode_position
from replica.notary.requests import format_state_ref, state_ref
from replica.notary.salvage import NO_SALVAGES, Salvage, Salvages
from tests.pipeline.judged import TOPIC
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import PARTY, log_values, publish, request, signed, tx
from tests.worlds.salvage_world import LostTail, restored

FIRST, LAST = 6, 13  # of the lost range, in which transaction 3 is notarised at offset 6 and transaction 6 at 11
SPENT = state_ref(tx(1002), 2)  # by transaction 3


def lost_log(applied: int = LAST, published: int = 12) -> tuple[list[bytes], Salvage]:
    """The log with each kind of verdict, of which two requests are kept, and three that came afterwards: one wants a
    state that was spent in the lost range, one repeats a transaction from there, one is new."""
    tail = LostTail(list(enumerate(log_values())), FIRST, (applied,), published, ledger_end=10)
    salvage = tail.salvage()
    later = [request(7, [2]), request(3, [2], [9]), request(10, [30])]
    return [
        value for _, value in restored(tail, salvage, [signed(one, 100 + at) for at, one in enumerate(later)])
    ], salvage


def in_tables(folder: Path, values: Sequence[bytes], salvages: Salvages, cuts: Sequence[int] = (8,)) -> TablesView:
    with open_writer(folder / "tables", folder / "index", TOPIC, salvages=salvages) as writer:
        for start, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
            writer.append(list(enumerate(values))[start:end])
    return TablesView(folder / "tables")


def read(values: Sequence[bytes]) -> Callable[[int, int], list[pa.RecordBatch]]:
    def stretch(first: int, end: int) -> list[pa.RecordBatch]:
        offsets, found = pa.array(range(first, end), pa.int64()), pa.array(values[first:end], pa.binary())
        return [pa.RecordBatch.from_arrays([offsets, found], ["offset", "value"])]

    return stretch


def the_range(salvage: Salvage, states_unknown: int = 0) -> Lost:
    return Lost(FIRST, LAST, salvage.digest.hex(), 2, states_unknown)


@pytest.mark.spark
def test_a_trace_shows_what_a_salvage_has(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: whoever asks who spent a state sees the lost record, and which range may hide more; the tables tell the
    same. Method: by state, transaction and party, on Spark, from the tables alone, and from both."""
    values, salvage = lost_log()
    held = Salvages([salvage])
    log, tables = write_log(tmp_path / "log", values, [7, 9]), in_tables(tmp_path, values, held)
    lost = {
        "offset": FIRST,
        "lost": True,
        "salvage": salvage.digest.hex(),
        "tx_id": tx(3).hex(),
        "content_digest": log_digest(3),
        "inputs": [format_state_ref(SPENT)],
        "outcome": "NOTARISED",
        "notarised_offset": FIRST,
    }
    for number, (kind, of, due) in enumerate(
        [
            ("of_state", SPENT, [5, 6, 14, 15]),
            ("of_tx", tx(3), [6, 15]),
            ("of_tx", tx(6), [11]),
            ("of_tx", tx(77), []),
            ("of_party", PARTY, [4, 5, 14, 15, 16]),
        ]
    ):
        subject, in_lake = getattr(subjects, kind)(of), getattr(from_tables, kind)(of)
        found = trace(spark, log, tmp_path / str(number), subject, 10, salvages=held)
        assert [one["offset"] for one in found.entries] == due
        assert found.lost == [the_range(salvage)]
        if FIRST in due:
            assert lost in found.entries
        told = settle(tables, len(values), read(values), Question(in_lake, subject, 10))
        assert told == Settled(found.entries, 0, found.lost)
        assert [one["offset"] for one in from_tables.trace_tables(tables, in_lake, 10, 2)] == due
    (refused,) = [one for one in found.entries if one["offset"] == 14]
    assert refused["conflicts"] == [
        {"state": format_state_ref(SPENT), "usage": "input", "consumed_by": tx(3).hex(), "consumed_at": FIRST}
    ]
    assert [
        one["offset"] for one in trace(spark, log, tmp_path / "few", subjects.of_state(SPENT), 2, salvages=held).entries
    ] == [5, 6]


def log_digest(number: int) -> str:
    return content_digest(request(number, [2], [9])).hex()


def test_states_that_nobody_knows_are_named_as_unknown(tmp_path: Path) -> None:
    """Goal: no empty list where the states are unknown. Method: an index that ends within the range, completions that
    go further; and a trace by a state that the log's end may name, before the tables have read on."""
    values, salvage = lost_log(applied=8, published=11)
    held = Salvages([salvage])
    ends = salvage.last + 1
    tables = in_tables(tmp_path, values[:ends], held)
    assert lost_in(tables) == [Lost(FIRST, 11, salvage.digest.hex(), 2, 1)]
    of_six = from_tables.trace_tables(tables, from_tables.of_tx(tx(6)), 9)
    assert [(one["offset"], one["inputs"]) for one in of_six] == [(11, None)]
    early = in_tables(tmp_path / "early", values[:FIRST], held, ())
    asked = Question(from_tables.of_tx(tx(6)), subjects.of_tx(tx(6)), 9)
    assert settle(early, len(values), read(values), asked) == "the record at offset 6 was lost, and the tables end at 5"


@pytest.mark.thorough
def test_tables_are_the_same_wherever_their_runs_end(tmp_path: Path) -> None:
    """Goal: a job that is killed and goes on adds nothing twice. Method: runs that end before, in and after the range;
    without the salvage it stops there, and goes on with it."""
    values, salvage = lost_log()
    held = Salvages([salvage])
    found = []
    for number, cuts in enumerate([(), (6,), (8,), (7, 11, 14), (14, 15)]):
        view = in_tables(tmp_path / str(number), values, held, cuts)
        columns = ("log_offset", "day", "salvage", "tx_id", "inputs")
        found.append(view.rows("lost", columns, -1).sort_by("log_offset").to_pylist())
        assert lost_in(view) == [the_range(salvage)]
        verdicts = (
            view.rows("verdicts", ("log_offset", "outcome", "notarised_offset"), -1).sort_by("log_offset").to_pylist()
        )
        completions = view.rows("completions", ("log_offset", "ledger_offset"), -1).sort_by("log_offset").to_pylist()
        assert [tuple(row.values()) for row in completions] == [(4, 1), (5, 2), (14, 11), (15, 12), (16, 13)]
        assert [tuple(row.values()) for row in verdicts][2:] == [
            (14, "STATE_CONFLICT", None),
            (15, "NOTARISED", 6),
            (16, "NOTARISED", 16),
        ]
    assert all(rows == found[0] for rows in found) and len(found[0]) == LAST - FIRST + 1
    with pytest.raises(SalvageMissing, match="offset 6 was lost"):
        in_tables(tmp_path / "without", values, NO_SALVAGES, (6,))
    with open_writer(tmp_path / "without" / "tables", tmp_path / "without" / "index", TOPIC, salvages=held) as writer:
        assert writer.position.offset == 5
        writer.append(list(enumerate(values))[6:])
    assert lost_in(TablesView(tmp_path / "without" / "tables")) == [the_range(salvage)]


@pytest.mark.thorough
@pytest.mark.spark
def test_reports_say_what_is_lost(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: nobody takes a report for whole. Method: the page by Spark and that from the tables name the range, count
    its records, and count requests that remain; without the salvage there is no report."""
    values, salvage = lost_log()
    held = Salvages([salvage])
    log = write_log(tmp_path / "log", values, [4])
    with pytest.raises(SalvageMissing, match="offset 6 was lost"):
        write_report(spark, log, tmp_path / "none", tmp_path / "no-report", [], made_us=1)
    page = write_report(spark, log, tmp_path / "work", tmp_path / "report", [], made_us=1, salvages=held).read_text()
    made = report_from_tables(in_tables(tmp_path, values, held), tmp_path / "lake", made_us=1)
    for text in (page, made.page.read_text()):
        assert f"Lost: {the_range(salvage)}." in text.replace("&#39;", "'")
        assert "<dt>lost records</dt><dd>8</dd>" in text
    outcomes = {
        row["outcome"]: row["requests"]
        for row in spark.read.parquet(str(tmp_path / "report" / "outcomes.parquet")).collect()
    }
    assert outcomes == {"NOTARISED": 3, "STATE_CONFLICT": 2}


@pytest.mark.thorough
@pytest.mark.spark
@pytest.mark.postgres
async def test_an_audit_goes_on(
    spark: SparkSession, tmp_path: Path, make_database: Callable[[], Awaitable[str]]
) -> None:
    """Goal: nothing that is true is a finding, and a completion or answer that contradicts the salvage is. Method: the
    completions of the whole log before it was lost, and answers from the range; then both changed."""
    values, salvage = lost_log()
    held = Salvages([salvage])
    dsn = await make_database()
    await publish(dsn, log_values())
    with psycopg.connect(dsn, autocommit=True) as connection:
        adopt(connection, salvage)
    log = write_log(tmp_path / "log", values, [4])
    answers = tmp_path / "answers.jsonl"
    ok = {"tx_id": tx(6).hex(), "log_offset": 11, "content_digest": digest_of_six()}
    refused = {"code": "TX_ID_REUSED", "record_offset": 10}
    answers.write_text("".join(json.dumps(line) + "\n" for line in (ok, refused)))
    scope = Scope({"the database": dsn}, (answers,), (), salvages=held)
    with pytest.raises(SalvageMissing, match="offset 6 was lost"):
        audit_log(spark, log, tmp_path / "none", Scope(), now_us=7)
    report = audit_log(spark, log, tmp_path / "work", scope, now_us=7)
    assert (report.counts, report.lost, report.voids) == ({}, [the_range(salvage)], {})
    assert report.outcomes == {"NOTARISED": 3, "STATE_CONFLICT": 2} and report.completions == 8

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("UPDATE completion SET content_digest = tx_id WHERE log_offset = 11")
    answers.write_text(
        "".join(json.dumps(line) + "\n" for line in (ok | {"tx_id": tx(5).hex()}, refused | {"record_offset": 11}))
    )
    found = audit_log(spark, log, tmp_path / "false", scope, now_us=7)
    assert found.counts == {"COMPLETION_DIFFERS": 1, "ANSWER_DIFFERS": 2}
    assert {finding.offset for finding in found.findings} == {11}


def digest_of_six() -> str:
    return content_digest(request(6, [7, 8])).hex()


def adopt(connection: psycopg.Connection[tuple[object, ...]], salvage: Salvage) -> None:
    """The published position is that of the lost record there, as `notary restore adopt` has it."""
    position = encode_position(salvage.position_at(LAST, TOPIC))
    connection.execute("UPDATE participant SET published_position = %s", (position,))
