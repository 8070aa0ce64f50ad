"""The tables' rows, judged from dense columns: those of the judgement in one process, from any log, cut anywhere."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.tables.dense import (
    decisions_of,
    dense_batches,
    dense_of,
    judged_of,
    read_dense,
    records_of,
    row_batches,
    rows_of_stretch,
)
from pipeline.tables.rows import COMPLETIONS, CONFLICTS, EPOCHS, LOST, REQUESTS, SCHEMAS, VERDICTS
from pipeline.tables.write import OrderedJudge
from replica.index.memory import MemoryIndex
from replica.notary.errors import FormatUnknown, InvariantBroken
from replica.notary.position import BEGIN, begin
from replica.notary.reading import RunReader, read_records
from replica.notary.salvage import NO_SALVAGES, Salvages
from tests.pipeline.judged import TOPIC, Rows, by_dense_tables, by_tables
from tests.pipeline.random_logs import logs
from tests.pipeline.signed_log import longer_values
from tests.worlds.notary_logs import Log, LogMaker, begun, request_of
from tests.worlds.notary_logs import logs as mixed_logs
from tests.worlds.party_logs import logs_with_parties, told_log
from tests.worlds.salvage_world import LostTail, restored, some_tail

CUTS = st.lists(st.integers(1, 40), max_size=6).map(sorted)
VALUES = longer_values()
NOTHING = dict.fromkeys(SCHEMAS, BEGIN)  # is in any table


def in_order(tables: dict[str, Rows]) -> dict[str, list[str]]:
    return {name: sorted(map(str, table.rows)) for name, table in tables.items()}


def made_alike(values: list[bytes], cuts: list[int], tasks: list[int], salvages: Salvages = NO_SALVAGES) -> None:
    try:
        expected = in_order(by_tables(values, cuts, salvages))
    except FormatUnknown:
        with pytest.raises(FormatUnknown):
            by_dense_tables(values, cuts, tasks, salvages)
    else:
        assert in_order(by_dense_tables(values, cuts, tasks, salvages)) == expected


@settings(deadline=None, max_examples=150)
@given(st.one_of(mixed_logs(), logs_with_parties()), CUTS, CUTS)
def test_both_engines_make_equal_rows(log: Log, cuts: list[int], tasks: list[int]) -> None:
    """Goal: no row differs. Method: random logs, runs and tasks that end anywhere."""
    made_alike([value for _, value in log], cuts, tasks)


@pytest.mark.thorough
@settings(deadline=None, max_examples=100)
@given(logs(), CUTS, CUTS)
def test_both_engines_make_equal_rows_of_a_log_dense_with_conflicts(
    values: list[bytes], cuts: list[int], tasks: list[int]
) -> None:
    """The same with few states, and damaged records."""
    made_alike(values, cuts, tasks)


@pytest.mark.thorough
@settings(deadline=None, max_examples=100)
@given(mixed_logs(), CUTS, CUTS, st.data())
def test_both_engines_make_equal_rows_across_a_lost_range(
    log: Log, cuts: list[int], tasks: list[int], data: st.DataObject
) -> None:
    """The same where a tail was lost, and its salvage is held."""
    assume(len(log) > 1)
    archived = data.draw(st.integers(0, len(log) - 1))
    salvage = LostTail(log, archived, (len(log) - 1,), -1).salvage()
    again = [value for _, value in log[archived:]]
    values = [value for _, value in restored(LostTail(log, archived, (), -1), salvage, again)]
    made_alike(values, cuts, tasks, Salvages([salvage]))


def test_the_kept_logs_have_rows_of_every_table() -> None:
    """Goal: the comparison compares something. Method: logs that are known, one with a lost range."""
    tables = by_dense_tables(VALUES, [5, 12], [3, 8])
    assert [len(tables[name].rows) for name in (REQUESTS, COMPLETIONS, CONFLICTS, EPOCHS)] == [14, 14, 3, 3]
    assert in_order(tables) == in_order(by_tables(VALUES))
    tail = some_tail()
    salvage = tail.salvage()
    maker = LogMaker(values=[value for _, value in restored(tail, salvage)])
    maker.barrier(2)
    maker.submit(request_of(20, (10,)))
    lost = by_dense_tables(maker.values, [4], [2], Salvages([salvage]))
    assert lost[LOST].rows and in_order(lost) == in_order(by_tables(maker.values, salvages=Salvages([salvage])))
    told = [value for _, value in told_log()]
    assert in_order(by_dense_tables(told, [3])) == in_order(by_tables(told))


def test_the_driver_gets_no_signature_and_no_text_of_a_request() -> None:
    """Goal: what goes to the driver is small. Method: the log's bytes against what is passed on."""
    dense = dense_of(range(len(VALUES)), VALUES)
    packed = [(value, one) for value, one in zip(VALUES, dense["packed"].to_pylist(), strict=True) if one is not None]
    assert len(packed) == 15  # the requests, one of nobody's activation
    for value, one in packed:
        assert b"alice" in value and b"alice" not in one and len(one) < len(value) - 64


def test_a_run_that_does_not_end_in_bytes_is_refused() -> None:
    """Goal: no position without its digest. Method: a run of dense records that lacks the stretch's last one."""
    records = records_of(pa.Table.from_batches([dense_of(range(len(VALUES)), VALUES)]))
    at = max(offset for offset, packed, _ in records if packed is not None)
    with pytest.raises(InvariantBroken, match="ends a run"):
        read_dense(begin(TOPIC), records[: at + 1])
    assert read_dense(begin(TOPIC), records).position == read_records(begin(TOPIC), enumerate(VALUES)).position
    with pytest.raises(InvariantBroken, match="the log goes from"):
        read_dense(begin(TOPIC), records[1:])


def test_a_stretch_with_a_gap_gets_no_rows() -> None:
    """Goal: ledger offsets are counted through a stretch, so it has no gap. Method: leave a record out."""
    records = records_of(pa.Table.from_batches([dense_of(range(len(VALUES)), VALUES)]))
    judged = judged_of(OrderedJudge(MemoryIndex(), begin(TOPIC), NO_SALVAGES), records)
    with pytest.raises(InvariantBroken, match="a task got"):
        rows_of_stretch(decisions_of(judged), [(1, VALUES[1]), (3, VALUES[3])])


def test_a_task_may_read_parts_of_the_log_in_any_order() -> None:
    """Goal: where records are read does not matter, as of files. Method: two tasks, each with parts that lie apart."""
    picks = [[9, 10, 11, 2, 3], [4, 5, 17, 18, 0, 1, *range(6, 9), *range(12, 17), *range(19, len(VALUES))]]
    tasks = [
        pa.RecordBatch.from_pydict({"offset": pick, "value": pa.array([VALUES[at] for at in pick], pa.binary())})
        for pick in picks
    ]
    records = records_of(pa.Table.from_batches(list(dense_batches(iter(tasks)))))
    judged = judged_of(OrderedJudge(MemoryIndex(), begin(TOPIC), NO_SALVAGES), records)
    found = pa.Table.from_batches(
        [row for task in tasks for row in row_batches(decisions_of(judged), NOTHING, iter([task]))]
    )
    expected = by_tables(VALUES)
    for name in (REQUESTS, VERDICTS, COMPLETIONS, CONFLICTS):
        rows = [row for row in found[name].to_pylist() if row is not None]
        assert sorted(map(str, rows)) == sorted(map(str, expected[name].rows)), name


def test_a_task_makes_the_rows_that_each_table_lacks() -> None:
    """Goal: a batch that is repeated doubles no row. Method: tables that reach different offsets in the batch."""
    records = records_of(pa.Table.from_batches([dense_of(range(len(VALUES)), VALUES)]))
    judged = judged_of(OrderedJudge(MemoryIndex(), begin(TOPIC), NO_SALVAGES), records)
    task = pa.RecordBatch.from_pydict({"offset": range(len(VALUES)), "value": pa.array(VALUES, pa.binary())})
    reached = NOTHING | {VERDICTS: 9, COMPLETIONS: len(VALUES)}
    found = pa.Table.from_batches(list(row_batches(decisions_of(judged), reached, iter([task]))))
    expected = by_tables(VALUES)
    for name in (REQUESTS, VERDICTS, COMPLETIONS):
        offsets = [row["log_offset"] for row in found[name].to_pylist() if row is not None]
        assert offsets == [row["log_offset"] for row in expected[name].rows if row["log_offset"] > reached[name]], name


@pytest.mark.parametrize("rule", ["is_first", "activation"])
def test_each_part_of_the_void_rule_is_applied_to_dense_records(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a repeat and a deposed replica's record stay void. Method: such records; without a part rows differ."""
    maker = begun()
    first = maker.submit(request_of(1, (1,)))
    maker.values.append(maker.values[first])
    maker.barrier(2)
    maker.values.append(maker.values[first])
    maker.submit(request_of(2, (2,)))
    maker.submit(request_of(3, (2,)))
    expected = in_order(by_tables(maker.values))
    assert in_order(by_dense_tables(maker.values)) == expected
    if rule == "is_first":
        monkeypatch.setattr(RunReader, "is_first", lambda self, sequence: True)
    else:
        monkeypatch.setattr(
            RunReader, "take_decoded", lambda self, at, *one: (self._next(at), self.count_request(*one, 3))
        )
    assert in_order(by_dense_tables(maker.values)) != expected
