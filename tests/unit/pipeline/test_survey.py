"""Surveys of the log: stretches that are surveyed apart amount to what the replica makes of the whole."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.judging.columns import decode
from pipeline.judging.plan import Survey, advance, survey
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
@given(logs(), st.lists(st.integers(0, 45), max_size=4))
def test_surveys_and_reading_give_one_position(log: Log, cuts: list[int]) -> None:
    """Goal: a stretch of the log can be read from its survey's position. Method: random logs, cut anywhere."""
    for told, read in positions(log, cuts):
        assert told is None or told == read


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
