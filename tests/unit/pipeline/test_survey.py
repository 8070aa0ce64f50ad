"""Surveys of the log: stretches that are surveyed apart amount to what the replica makes of the whole."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.judging.columns import decode
from pipeline.judging.plan import (
    Survey,
    advance,
    counted,
    make_plan,
    survey,
    void_reasons,
)
from replica.notary.counted import CountedNote, CountedRequest, CountedSettlement
from replica.notary.errors import FormatUnknown, InvariantBroken
from replica.notary.position import Position, begin
from replica.notary.reading import read_records
from tests.worlds.notary_logs import TOPIC, Log, LogMaker, activation, logs, request_of, split


def surveys_of(log: Log) -> list[Survey]:
    """The survey of a stretch, if there is anything in it."""
    return [survey(decode(log[0][0], pa.array([value for _, value in log], pa.binary())))] if log else []


def positions(log: Log, cuts: list[int]) -> list[tuple[Position | None, Position]]:
    """After each stretch: the position that the surveys give, None where they cannot, and that of reading."""
    found: list[tuple[Position | None, Position]] = []
    position = begin(TOPIC)
    for stretch in split(log, cuts):
        told = advance(position, surveys_of(stretch))
        position = read_records(position, stretch).position
        found.append((told, position))
    return found


@settings(deadline=None)
@given(logs() | logs(2, claims=False), st.lists(st.integers(0, 45), max_size=4))
def test_surveys_and_reading_give_one_position(log: Log, cuts: list[int]) -> None:
    """Goal: a stretch of the log can be read from its survey's position. Method: random logs, cut anywhere."""
    for told, read in positions(log, cuts):
        assert told is None or told == read


@settings(deadline=None)
@given(logs(2, claims=False), st.lists(st.integers(0, 45), max_size=4))
def test_slices_of_mixed_logs_count_what_reading_counts(log: Log, cuts: list[int]) -> None:
    """Goal: one void rule for both formats, usual records and others. Method: slices by the plan, and reading."""
    slices = [decode(part[0][0], pa.array([v for _, v in part], pa.binary())) for part in split(log, cuts) if part]
    surveys = {columns.first_offset: survey(columns) for columns in slices}
    plan, again = make_plan(begin(TOPIC), surveys.values())
    if again:
        of = {columns.first_offset: columns for columns in slices}
        surveys |= {at: survey(of[at], plan.rules_of(of[at])) for at in again}
        plan, _ = make_plan(begin(TOPIC), surveys.values())
    voids: list[tuple[int, str]] = []
    found: list[tuple[int, type, int | None]] = []
    for columns in slices:
        part, first = counted(columns, plan.rules_of(columns)), columns.first_offset
        voids += [(at, reason.value) for at, reason in void_reasons(columns, part, plan.barriers)]
        rows = columns.rows[part.requests]
        found += [(first + r, CountedRequest, t) for r, t in zip(rows.tolist(), part.judged_us.tolist(), strict=True)]
        settled = zip(part.settlements.tolist(), part.settled_us.tolist(), strict=True)
        found += [(first + row, CountedSettlement, at_us) for row, at_us in settled]
        found += [(first + row, CountedNote, None) for row in part.notes.tolist()]
    reading = read_records(begin(TOPIC), log)
    assert plan.position == reading.position
    assert voids == [(void.offset, void.reason.value) for void in reading.voids]
    assert sorted(found, key=lambda one: one[0]) == [
        (one.offset, type(one), None if isinstance(one, CountedNote) else one.judged_us) for one in reading.counted
    ]


def test_a_plan_names_the_rules_that_judge_commands() -> None:
    """Goal: jobs look at commands where they matter. Method: a log that was not raised, and then was."""
    maker = LogMaker()
    maker.barrier(1)
    assert not make_plan(begin(TOPIC), surveys_of(maker.log))[0].judges_commands
    maker.barrier(2, format=2)
    assert make_plan(begin(TOPIC), surveys_of(maker.log))[0].judges_commands


def test_a_usual_log_is_told_from_small_surveys() -> None:
    """Goal: surveys are tiny, and complete. Method: three stretches with a fail-over and a late record in between."""
    maker = LogMaker()
    maker.barrier(1)
    for number in range(10):
        maker.submit(request_of(number), stamp_us=100 + number)
    maker.barrier(2)
    maker.submit(request_of(50), activation_id=activation(1), sequence=10)  # from the deposed
    for number in range(20, 30):
        maker.submit(request_of(number), stamp_us=200 + number)
    surveys = [found for part in split(maker.log, [5, 12]) for found in surveys_of(part)]
    assert [sum(len(stretch.runs) for stretch in found.stretches) for found in surveys] == [1, 1, 2]
    assert all(told == read for told, read in positions(maker.log, [5, 12]))


def test_a_repeat_is_left_to_reading() -> None:
    """Goal: no guess at which record counted. Method: a stretch that begins with a number that was seen before."""
    maker = LogMaker()
    maker.barrier(1)
    for sequence in (0, 1, 1, 2):
        maker.submit(request_of(sequence), sequence=sequence, stamp_us=10 + len(maker.values))
    assert [told is None for told, _ in positions(maker.log, [3])] == [False, True]


def test_a_gap_and_an_unknown_format_are_refused() -> None:
    """Goal: nothing is guessed. Method: advance over a gap, and over a newer format."""
    with pytest.raises(InvariantBroken):
        advance(begin(TOPIC), [Survey(1, 1, b"", ())])
    newer = LogMaker()
    newer.barrier(1, format=99)
    with pytest.raises(FormatUnknown):
        advance(begin(TOPIC), surveys_of(newer.log))
