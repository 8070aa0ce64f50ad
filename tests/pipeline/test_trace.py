"""Tracing: who submitted what, with evidence that stands on its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from pipeline.audit.trace import trace
from pipeline.judging.subjects import of_party, of_state, of_tx
from pipeline.tables import trace as from_tables
from pipeline.tables.read import TablesView
from pipeline.tables.settled import Question, ReadStretch, Settled, settle
from pipeline.tables.write import open_writer
from replica.notary.requests import format_state_ref, state_ref
from replica.notary.signatures import signature_holds
from tests.pipeline.judged import TOPIC
from tests.pipeline.log_files import write_log
from tests.pipeline.signed_log import PARTY, log_values, longer_values, tx

pytestmark = pytest.mark.spark


def test_a_state_a_transaction_and_a_party_are_traced(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: all that touched a subject, with verdict and proof. Method: the log with each kind of verdict."""
    log = write_log(tmp_path / "log", log_values(), [4])
    ref = state_ref(tx(1001), 1)

    of_one = trace(spark, log, tmp_path / "1", of_state(ref), 10).entries
    assert [(one["offset"], one["outcome"]) for one in of_one] == [
        (4, "NOTARISED"),
        (5, "STATE_CONFLICT"),
        (7, "STATE_CONFLICT"),
        (8, "NOTARISED"),
    ]
    loser = of_one[2]
    assert loser["conflicts"] == [
        {"state": format_state_ref(ref), "usage": "reference", "consumed_by": tx(1).hex(), "consumed_at": 4}
    ]
    proof = (bytes.fromhex(loser[name]) for name in ("public_key", "signed_bytes", "signature"))
    assert signature_holds(*proof) and loser["signature_holds"]
    assert (loser["party"], loser["replica"], loser["epoch"]) == (PARTY, "r1", 2)

    assert [one["outcome"] for one in trace(spark, log, tmp_path / "2", of_tx(tx(1)), 10).entries] == [
        "NOTARISED",
        "NOTARISED",
        "TX_ID_REUSED",
    ]
    assert [one["offset"] for one in trace(spark, log, tmp_path / "3", of_party(PARTY), 3).entries] == [4, 5, 6]
    assert trace(spark, log, tmp_path / "4", of_party(PARTY[:-1]), 3).entries == []


@pytest.mark.thorough
def test_what_was_submitted_after_a_fail_over_is_traced(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: verdicts on commands with their proof, and a party also where the command follows it in the signed bytes.
    Method: the longer log, by transaction and by party."""
    log = write_log(tmp_path / "log", longer_values(), [13])
    found = trace(spark, log, tmp_path / "1", of_tx(tx(8)), 10).entries
    assert [(one["offset"], one["outcome"], one["notarised_offset"]) for one in found] == [
        (16, "COMMAND_ID_REUSED", None),
        (17, "NOTARISED", 17),
        (18, "NOTARISED", 17),
        (20, "NOTARISED", 17),
    ]
    signed = found[1]
    assert signed["signature_holds"] and signed["signed_bytes"].startswith(b"notary/request/3".hex())
    assert (signed["party"], signed["epoch"], signed["deduplication_us"], signed["deduplication_after"]) == (
        PARTY,
        3,
        500,
        None,
    )
    of_one = trace(spark, log, tmp_path / "2", of_tx(tx(1)), 10).entries
    assert [(one["offset"], one["outcome"], one["notarised_offset"]) for one in of_one][-1] == (15, "DEDUPLICATED", 4)
    of_all = trace(spark, log, tmp_path / "3", of_party(PARTY), 99).entries
    assert [one["offset"] for one in of_all] == [*range(4, 12), *range(15, 21)]


EVIDENCE = {
    *("act_as", "deduplication_us", "deduplication_after"),
    *("signature", "signature_holds", "signed_bytes", "record", "record_sha256"),
}


@pytest.mark.thorough
def test_the_tables_tell_what_the_log_tells(spark: SparkSession, tmp_path: Path) -> None:
    """Goal: who looks into the tables sees no other story, but for the evidence; with the log's records beside
    them, no other at all. Method: the longer log by both, by state, transaction and party, with a limit; the tables
    whole, and a few records at a time."""
    values = longer_values()
    with open_writer(tmp_path / "tables", tmp_path / "index", TOPIC) as writer:
        writer.append(list(enumerate(values)))
    log, tables = write_log(tmp_path / "log", values, [13]), TablesView(tmp_path / "tables")
    asked: list[tuple[str, bytes | str, int]] = [
        ("of_state", state_ref(tx(1001), 1), 10),
        ("of_state", state_ref(tx(1001), 1), 2),
        ("of_tx", tx(8), 10),
        ("of_tx", tx(4711), 10),
        ("of_party", PARTY, 99),
        ("of_party", PARTY[:-1], 99),
    ]
    by_spark = {"of_state": of_state, "of_tx": of_tx, "of_party": of_party}
    for number, (kind, of, limit) in enumerate(asked):
        told = from_tables.trace_tables(tables, getattr(from_tables, kind)(of), limit)
        assert told == from_tables.trace_tables(tables, getattr(from_tables, kind)(of), limit, 3)
        judged = trace(spark, log, tmp_path / str(number), by_spark[kind](of), limit).entries  # type: ignore[operator]
        assert told == [{name: one[name] for name in one.keys() - EVIDENCE} for one in judged]
        assert not told or judged[0].keys() - told[0].keys() == EVIDENCE
        asked_both = Question(getattr(from_tables, kind)(of), by_spark[kind](of), limit)  # type: ignore[operator]
        assert settle(tables, len(values), _read(values), asked_both) == Settled(judged, 0, [])


def _read(values: Sequence[bytes]) -> ReadStretch:
    def read(first: int, end: int) -> list[pa.RecordBatch]:
        offsets, found = pa.array(range(first, end), pa.int64()), pa.array(values[first:end], pa.binary())
        return [pa.RecordBatch.from_arrays([offsets, found], ["offset", "value"])]

    return read
