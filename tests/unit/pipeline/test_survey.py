"""Surveys of the log: stretches that are surveyed apart amount to what the replica makes of the whole."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.judging.columns import Columns, decode
from pipeline.judging.plan import (
    Survey,
    advance,
    counted,
    make_plan,
    survey,
    void_reasons,
)
from replica.notary.counted import CountedNote, CountedRequest
from replica.notary.errors import FormatUnknown, InvariantBroken
from replica.notary.genesis import NO_LEDGER
from replica.notary.leases import OTHERS_FROM, SIGNS_OF_LIFE_FROM
from replica.notary.position import Position, begin
from replica.notary.reading import VoidReason, read_records
from replica.notary.records import SignOfLifeRecord, decode_record
from tests.pipeline.judged import plan_of
from tests.worlds.beginning import OTHER_LEDGER
from tests.worlds.notary_logs import (
    TOPIC,
    Log,
    LogMaker,
    activation,
    begun,
    logs,
    made,
    request_of,
    split,
)


def surveys_of(log: Log) -> list[Survey]:
    """The survey of a stretch, if there is anything in it."""
    return [survey(decode(log[0][0], pa.array([value for _, value in log], pa.binary())))] if log else []


def slices_of(log: Log, cuts: Sequence[int] = ()) -> list[Columns]:
    """The log in slices; none of them is empty."""
    parts = [part for part in split(log, list(cuts)) if part]
    return [decode(part[0][0], pa.array([value for _, value in part], pa.binary())) for part in parts]


def positions(log: Log, cuts: list[int]) -> list[tuple[Position | None, Position]]:
    """After each stretch: the position that the surveys give, None where they cannot, and that of reading."""
    found: list[tuple[Position | None, Position]] = []
    position = begin(TOPIC)
    for stretch in split(log, cuts):
        told = advance(position, surveys_of(stretch))
        position = read_records(position, stretch).position
        found.append((told, position))
    return found


@pytest.mark.thorough
@settings(deadline=None)
@given(logs(), st.lists(st.integers(0, 45), max_size=4))
def test_surveys_and_reading_give_one_position(log: Log, cuts: list[int]) -> None:
    """Goal: a stretch of the log can be read from its survey's position. Method: random logs, cut anywhere."""
    for told, read in positions(log, cuts):
        assert told is None or told == read


@settings(deadline=None)
@given(logs(), st.lists(st.integers(0, 45), max_size=4))
def test_slices_of_mixed_logs_count_what_reading_counts(log: Log, cuts: list[int]) -> None:
    """Goal: one void rule for both formats, usual records and others. Method: slices by the plan, and reading."""
    slices = slices_of(log, cuts)
    plan = plan_of(slices, TOPIC)
    voids: list[tuple[int, str]] = []
    found: list[tuple[int, type, int | None]] = []
    for columns in slices:
        part, first = counted(columns, plan), columns.first_offset
        voids += [(at, reason.value) for at, reason in void_reasons(columns, part, plan)]
        rows = columns.rows[part.requests]
        found += [(first + r, CountedRequest, t) for r, t in zip(rows.tolist(), part.judged_us.tolist(), strict=True)]
        notes = [first + row for row in part.notes.tolist()]
        found += [
            (at, CountedNote, None)
            for at in notes
            if at == 0 or not isinstance(decode_record(log[at][1], 2), SignOfLifeRecord)  # at 0 is the genesis
        ]
    reading = read_records(begin(TOPIC), log)
    assert plan.position == reading.position
    assert voids == [(void.offset, void.reason.value) for void in reading.voids]
    assert sorted(found, key=lambda one: one[0]) == [
        (one.offset, type(one), None if isinstance(one, CountedNote) else one.judged_us) for one in reading.counted
    ]


def test_a_usual_log_is_told_from_small_surveys() -> None:
    """Goal: surveys are tiny, and complete. Method: three stretches with a fail-over and a late record in between."""
    maker = begun()
    for number in range(10):
        maker.submit(request_of(number), stamp_us=100 + number)
    maker.barrier(2)
    maker.submit(request_of(50), activation_id=activation(1), sequence=10)  # from the deposed
    for number in range(20, 30):
        maker.submit(request_of(number), stamp_us=200 + number)
    surveys = [found for part in split(maker.log, [5, 13]) for found in surveys_of(part)]
    assert [sum(len(stretch.runs) for stretch in found.stretches) for found in surveys] == [1, 1, 2]
    assert all(told == read for told, read in positions(maker.log, [5, 13]))


def test_a_repeat_is_left_to_reading() -> None:
    """Goal: no guess at which record counted. Method: a stretch that begins with a number that was seen before."""
    maker = made()
    maker.barrier(1)
    for sequence in (0, 1, 1, 2):
        maker.submit(request_of(sequence), sequence=sequence, stamp_us=10 + len(maker.values))
    assert [told is None for told, _ in positions(maker.log, [4])] == [False, True]


@pytest.mark.parametrize("other", [OTHER_LEDGER, NO_LEDGER], ids=["another", "none"])
def test_a_slice_that_seems_to_be_of_another_ledger_is_looked_at_again(other: bytes) -> None:
    """Goal: slices judge as a reader of the whole log does. Method: a slice whose first request is for another ledger,
    with the highest stamp and a number that a good request has later; its position is left to reading."""
    maker = begun()
    maker.submit(request_of(1, (1,)), stamp_us=5)
    maker.submit(request_of(2, (2,), ledger_id=other), sequence=7, stamp_us=900)
    maker.submit(request_of(3, (2,)), sequence=7, stamp_us=9)
    maker.submit(request_of(4, (3,), ledger_id=other), sequence=8)
    assert [told is None for told, _ in positions(maker.log, [4, 6])] == [False, True, True]
    for cuts in ([], [4], [4, 6], [5], [6], [1, 2, 3, 4, 5, 6]):
        slices = slices_of(maker.log, cuts)
        plan, reading = plan_of(slices, TOPIC), read_records(begin(TOPIC), maker.log)
        assert plan.position == reading.position
        reasons = [found for columns in slices for found in void_reasons(columns, counted(columns, plan), plan)]
        assert reasons == [(4, VoidReason.UNDECODABLE), (6, VoidReason.UNDECODABLE)]


def test_a_gap_and_an_unknown_format_are_refused() -> None:
    """Goal: nothing is guessed. Method: advance over a gap, and over a newer format."""
    with pytest.raises(InvariantBroken):
        advance(begin(TOPIC), [Survey(b"", 1, 1, b"", ())])
    newer = LogMaker()
    newer.barrier(1, format=99)
    with pytest.raises(FormatUnknown):
        advance(begin(TOPIC), surveys_of(newer.log))


def leased(*, repeat: bool) -> LogMaker:
    """R1 holds a lease, its newest record that counts is at offset 3. `repeat`: a copy of that comes after it."""
    maker = made()
    maker.claim(1, -1)
    maker.live()
    maker.submit(request_of(1, (1,)))
    if repeat:
        maker.raw(maker.values[3])
    return maker


@pytest.mark.parametrize("cuts", [[], [1], [2], [3], [4], [5], [6], [1, 2, 3, 4, 5, 6]])
@pytest.mark.parametrize(("witnessed", "epoch"), [(2, 1), (3, 2)])
def test_a_claim_is_judged_by_what_earlier_slices_have_of_its_holder(
    cuts: list[int], witnessed: int, epoch: int
) -> None:
    """Goal: slices judge a claim as a replica does. Method: one that saw all that counts, one that did not; a repeat
    of the newest record comes in between, which is no sign of life."""
    maker = leased(repeat=True)
    maker.claim(2, witnessed, wins=False)
    maker.submit(request_of(2, (2,)))
    maker.submit(request_of(3, (3,)), activation_id=activation(2), sequence=0)
    plan = plan_of(slices_of(maker.log, cuts), TOPIC)
    assert plan.position == read_records(begin(TOPIC), maker.log).position
    assert plan.position.epoch == epoch


@pytest.mark.parametrize("cuts", [[], [4], [5], [6], [4, 5, 6]])
@pytest.mark.parametrize(("witnessed", "epoch"), [(3, 1), (5, 2)])
def test_records_of_other_replicas_are_no_life_of_the_holder(cuts: list[int], witnessed: int, epoch: int) -> None:
    """Goal: the same where every replica serves. Method: others write before and after the holder's sign of life."""
    maker = leased(repeat=False)
    for sequence in (OTHERS_FROM, SIGNS_OF_LIFE_FROM, OTHERS_FROM + 1):
        maker.submit(request_of(7, ()), sequence=sequence)
    maker.claim(2, witnessed, wins=False)
    plan = plan_of(slices_of(maker.log, cuts), TOPIC)
    assert plan.position == read_records(begin(TOPIC), maker.log).position
    assert plan.position.epoch == epoch


@pytest.mark.parametrize("cuts", [[5], [5, 6], [5, 6, 7]])
def test_claims_that_depend_on_one_another_are_settled_in_rounds(cuts: list[int]) -> None:
    """Goal: a plan that was unclear in two places ends as reading does. Method: a repeat hides that a claim counts, and
    the next holder's repeat hides that the claim after that counts."""
    maker = leased(repeat=True)
    second = maker.claim(2, 3)
    sign = maker.live()
    maker.raw(maker.values[sign])
    maker.claim(3, sign)
    maker.claim(4, second, wins=False)
    position = plan_of(slices_of(maker.log, cuts), TOPIC).position
    assert position == read_records(begin(TOPIC), maker.log).position
    assert position.epoch == 3


def test_a_late_claim_is_void_whatever_formats_it_names_and_no_plan_stops_for_it() -> None:
    """Goal: no job stops for a record without effect. Method: the repeat makes the second claim look void, and so the
    third, of a format that nobody knows, as if it were in force."""
    maker = leased(repeat=True)
    second = maker.claim(2, 3)
    maker.live()
    maker.claim(3, second, format=3, wins=False)
    for cuts in ([4], [5], [6], [4, 5, 6, 7]):
        assert plan_of(slices_of(maker.log, cuts), TOPIC).position == read_records(begin(TOPIC), maker.log).position


def test_a_claim_that_nobody_judges_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the comparisons see the rule. Method: plans without it, and plans that take a repeat for a sign of life."""
    for repeat, witnessed in ((False, 2), (True, 3)):
        maker = leased(repeat=repeat)
        maker.claim(2, witnessed, wins=False)
        slices = slices_of(maker.log, [4])
        expected = read_records(begin(TOPIC), maker.log).position
        assert plan_of(slices, TOPIC).position == expected
        with monkeypatch.context() as patch:
            if repeat:
                mutant = make_plan(begin(TOPIC), map(survey, slices), lambda plan, firsts: [])
            else:
                patch.setattr("pipeline.judging.plan.comes_too_late", lambda *of: False)
                mutant = plan_of(slices, TOPIC)
        assert mutant.position != expected
