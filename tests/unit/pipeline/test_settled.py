"""A trace without Spark: given only where a judgement of the whole log would give the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from pipeline.judging import subjects
from pipeline.tables import settled
from pipeline.tables import trace as from_tables
from pipeline.tables.read import TablesView, has_tables
from pipeline.tables.rows import CONFLICTS, EPOCHS, VERDICTS
from pipeline.tables.settled import Question, Settled, settle, stretches_of
from pipeline.tables.trace import trace_tables
from pipeline.tables.write import open_writer
from replica.notary.errors import InvariantBroken, LogRefused
from replica.notary.granters import Database
from replica.notary.records import FORMAT, BarrierRecord, encode_record
from replica.notary.requests import state_ref
from replica.notary.signatures import signature_holds
from tests.pipeline.judged import TOPIC
from tests.pipeline.signed_log import PARTY, longer_values, tx

VALUES = longer_values()
STATE = state_ref(tx(1002), 2)  # named at 5, where it is refused, and at 6


class Log:
    """A log in memory; notes what was read of it."""

    def __init__(self, values: Sequence[bytes]) -> None:
        self.values = values
        self.read_ranges: list[tuple[int, int]] = []

    def read(self, first: int, end: int) -> Iterator[pa.RecordBatch]:
        self.read_ranges.append((first, end))
        for start in range(first, end, 4):  # several batches
            until = min(start + 4, end)
            offsets = pa.array(range(start, until), pa.int64())
            values = pa.array(self.values[start:until], pa.binary())
            yield pa.RecordBatch.from_arrays([offsets, values], ["offset", "value"])


def tables_of(folder: Path, values: Sequence[bytes]) -> TablesView:
    with open_writer(folder / "tables", folder / "index", TOPIC) as writer:
        writer.append(list(enumerate(values)))
    return TablesView(folder / "tables")


def of_state(ref: bytes, limit: int = 10) -> Question:
    return Question(from_tables.of_state(ref), subjects.of_state(ref), limit)


def offsets(found: Settled | str) -> list[int]:
    assert isinstance(found, Settled), found
    return [entry["offset"] for entry in found.entries]


@pytest.mark.parametrize("tables_end", [7, 12, 15, len(VALUES)])
def test_the_tables_suffice_while_no_newer_record_names_the_subject(tmp_path: Path, tables_end: int) -> None:
    """Goal: an old table may answer. Method: tables that lack the log's end, which does not name the state; the proof
    comes from the log's own records."""
    log = Log(VALUES)
    found = settle(tables_of(tmp_path, VALUES[:tables_end]), len(VALUES), log.read, of_state(STATE))
    assert offsets(found) == [5, 6]
    assert isinstance(found, Settled) and found.tail_records == len(VALUES) - tables_end
    loser = found.entries[0]
    assert (loser["outcome"], loser["record"]) == ("STATE_CONFLICT", VALUES[5].hex())
    assert signature_holds(*(bytes.fromhex(loser[name]) for name in ("public_key", "signed_bytes", "signature")))


@pytest.mark.parametrize("tables_end", [5, 6])
def test_a_newer_record_that_names_the_subject_is_left_to_spark(tmp_path: Path, tables_end: int) -> None:
    """Goal: no answer that lacks a request. Method: tables that end before the last one; by transaction and party too;
    a record that names the state and does not count, which is not known before it is judged."""
    tables, log = tables_of(tmp_path, VALUES[:tables_end]), Log(VALUES)
    assert f"offset {tables_end} names it as well" in str(settle(tables, len(VALUES), log.read, of_state(STATE)))
    of_party = Question(from_tables.of_party(PARTY), subjects.of_party(PARTY), 99)
    of_tx = Question(from_tables.of_tx(tx(8)), subjects.of_tx(tx(8)), 99)
    for asked in (of_party, of_tx, of_state(state_ref(tx(1001), 1))):
        assert isinstance(settle(tables, len(VALUES), log.read, asked), str)


def test_nobody_is_an_answer_only_where_all_records_were_looked_at(tmp_path: Path) -> None:
    """Goal: a state that nobody wanted is told as such. Method: an empty end of the log, and one that names it."""
    tables, nobody = tables_of(tmp_path, VALUES[:15]), state_ref(tx(4711), 0)
    assert settle(tables, len(VALUES), Log(VALUES).read, of_state(nobody)) == Settled([], len(VALUES) - 15, [])
    late = state_ref(tx(1020), 20)  # of the requests from 16 on
    assert isinstance(settle(tables, len(VALUES), Log(VALUES).read, of_state(late)), str)


def test_newer_records_are_not_read_once_there_are_enough(tmp_path: Path) -> None:
    """Goal: the first ones of a long list cost nothing more. Method: a limit that the tables fill; what was read."""
    log = Log(VALUES)
    found = settle(tables_of(tmp_path, VALUES[:6]), len(VALUES), log.read, of_state(STATE, 1))
    assert offsets(found) == [5] and log.read_ranges == [(5, 6)]


def test_tables_that_lag_far_are_no_place_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: searching the log's end stays cheap. Method: one record more than is searched."""
    tables, log = tables_of(tmp_path, VALUES[:9]), Log(VALUES)
    monkeypatch.setattr(settled, "TAIL_RECORDS_MAX", len(VALUES) - 9)
    assert offsets(settle(tables, len(VALUES), log.read, of_state(STATE))) == [5, 6]
    monkeypatch.setattr(settled, "TAIL_RECORDS_MAX", len(VALUES) - 10)
    log.read_ranges.clear()
    assert "newest" in str(settle(tables, len(VALUES), log.read, of_state(STATE))) and not log.read_ranges


def test_tables_that_say_other_than_the_log_are_refused(tmp_path: Path) -> None:
    """Goal: no proof is shown for another request. Method: the log has another record where the tables have one."""
    tables = tables_of(tmp_path, VALUES)
    others = [*VALUES[:6], VALUES[8], *VALUES[7:]]
    with pytest.raises(LogRefused, match="offset 6 is not the one in the tables"):
        settle(tables, len(VALUES), Log(others).read, of_state(STATE))


def test_a_log_that_ends_before_the_tables_is_not_looked_into(tmp_path: Path) -> None:
    """Goal: a log that lost its end is judged, not believed. Method: one record fewer than the tables have."""
    tables, log = tables_of(tmp_path, VALUES[:6]), Log(VALUES[:5])
    assert settle(tables, 5, log.read, of_state(STATE)) == "the tables end at offset 5, and the log at 4"
    assert not log.read_ranges


def test_tables_are_there_once_all_of_them_are(tmp_path: Path) -> None:
    """Goal: a killed first run is no place to look. Method: before, after, and with one table removed."""
    assert not has_tables(tmp_path / "tables")
    tables_of(tmp_path, VALUES)
    assert has_tables(tmp_path / "tables")
    (tmp_path / "tables" / "epochs").rename(tmp_path / "epochs")
    assert not has_tables(tmp_path / "tables")


@pytest.mark.parametrize(
    ("wanted", "near_records", "expected"),
    [
        ([], 10, []),
        ([5], 10, [(5, 6)]),
        ([5, 6, 15], 10, [(5, 16)]),
        ([5, 16], 10, [(5, 6), (16, 17)]),
        ([0, 100, 104], 5, [(0, 1), (100, 105)]),
    ],
)
def test_near_records_are_read_in_one_stretch(
    wanted: list[int], near_records: int, expected: list[tuple[int, int]]
) -> None:
    """Goal: a hundred neighbours are one question to the log. Method: gaps below, at and above the limit."""
    assert stretches_of(wanted, near_records) == expected


def test_what_a_newer_release_wrote_is_left_to_spark(tmp_path: Path) -> None:
    """Goal: a record that cannot be read is not taken for one that does not name the state. Method: the log goes on
    with a barrier of rules that nobody knows, and with bytes of another format. Spark refuses such a log."""
    tables = tables_of(tmp_path, VALUES)
    barrier = BarrierRecord(99, b"newer".ljust(16), "r1", Database("postgres", "1", 1), FORMAT, 99)
    values = [*VALUES, encode_record(barrier), b"\xc1" + STATE]
    told = settle(tables, len(values), Log(values).read, of_state(STATE))
    assert f"offset {len(VALUES)} " in str(told) and "newer release" in str(told)


@pytest.mark.parametrize("name", [VERDICTS, CONFLICTS, EPOCHS])
def test_tables_that_do_not_agree_do_not_answer(tmp_path: Path, name: str) -> None:
    """Goal: no half of an answer, and no traceback. Method: rows of one table are deleted: the verdict on a request,
    the states in its way, the activation that it counts under."""
    tables_of(tmp_path, VALUES)
    DeltaTable(str(tmp_path / "tables" / name)).delete("log_offset <= 5")
    tables = TablesView(tmp_path / "tables")
    with pytest.raises(InvariantBroken, match="do not agree"):
        trace_tables(tables, from_tables.of_state(STATE), 10)
    assert "do not agree" in str(settle(tables, len(VALUES), Log(VALUES).read, of_state(STATE)))


def test_nobody_has_no_name(tmp_path: Path) -> None:
    """Goal: an empty name is a name that nobody has. Method: by the tables and by the log's newest records."""
    asked = Question(from_tables.of_party(""), subjects.of_party(""), 10)
    assert settle(tables_of(tmp_path, VALUES[:9]), len(VALUES), Log(VALUES).read, asked) == Settled(
        [], len(VALUES) - 9, []
    )
