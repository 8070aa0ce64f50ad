"""The rules: the order of judgement, each outcome, windows, and what an offset in the index means."""

from __future__ import annotations

import msgspec
import pytest

from replica.notary.counted import CountedRequest
from replica.notary.errors import InvariantBroken
from replica.notary.records import RequestRecord
from replica.notary.requests import Request, TimeWindow
from replica.notary.rules import (
    RULES,
    RULES_VERSION,
    Conflict,
    Outcome,
    Usage,
    Verdict,
    hash_of_tx_id,
    judge,
    keys_of,
)
from tests.worlds.notary_logs import (
    LogMaker,
    activation,
    judge_knowing,
    request_of,
    run_product,
    state,
    submission_of,
    tx,
)


def _counted(request: Request, offset: int, judged_us: int = 50, digest: bytes = b"d" * 32) -> CountedRequest:
    record = RequestRecord(1, activation(1), offset, judged_us, submission_of(request))
    return CountedRequest(offset, record, request, digest, judged_us, 1, bytes(32))


def _spent(by: int, offset: int) -> bytes:
    return tx(by) + offset.to_bytes(8, "big")


def _judge_one(entry: CountedRequest, known: dict[bytes, bytes]) -> Verdict:
    return judge_knowing(known, [entry])[0][0]


def test_a_first_request_is_notarised_at_its_own_offset_and_recorded() -> None:
    """Goal: what the index gets. Method: one request with two inputs and a reference."""
    entry = _counted(request_of(1, (1, 2), (3,)), 7)
    verdicts, added = judge_knowing({}, [entry])
    assert verdicts == [Verdict(Outcome.NOTARISED, 7)]
    at = (7).to_bytes(8, "big")
    assert added == {
        b"s" + state(1): tx(1) + at,
        b"s" + state(2): tx(1) + at,
        b"t" + tx(1): b"d" * 32 + at,
    }
    assert set(keys_of(entry)) == {b"t" + tx(1), b"s" + state(1), b"s" + state(2), b"s" + state(3)}


@pytest.mark.parametrize("told", [0, 2, 4])
def test_an_index_that_tells_of_too_few_or_too_many_keys_is_not_believed(told: int) -> None:
    """Goal: nothing passes for unspent that was not looked up. Method: three keys, and another number of values."""
    entry = _counted(request_of(1, (1, 2)), 7)
    with pytest.raises(InvariantBroken, match="asked for were 3"):
        judge([entry], [keys_of(entry)], [None] * told)


def test_a_transaction_without_inputs_is_remembered_too() -> None:
    """Goal: reference-only and empty transactions are idempotent. Method: look at the entries and judge again."""
    first, again = _counted(request_of(1), 1), _counted(request_of(1), 9)
    verdicts, added = judge_knowing({}, [first, again])
    assert list(added) == [b"t" + tx(1)]
    assert verdicts == [Verdict(Outcome.NOTARISED, 1), Verdict(Outcome.NOTARISED, 1)]


def test_a_retry_succeeds_although_its_window_closed_and_its_reference_was_spent() -> None:
    """Goal: same id and content come first. Method: notarise, spend the reference, close the window, ask again."""
    request = request_of(1, (1,), (2,), TimeWindow(None, 100))
    first = _counted(request, 1, judged_us=50)
    spender = _counted(request_of(2, (2,)), 2)
    again = _counted(request, 3, judged_us=500)
    verdicts, _ = judge_knowing({}, [first, spender, again])
    assert [v.outcome for v in verdicts] == [Outcome.NOTARISED] * 3
    assert verdicts[2].notarised_offset == 1


def test_an_id_reused_with_other_content_is_refused_before_its_conflict_is_looked_at() -> None:
    """Goal: reuse comes before conflict and window. Method: other content whose input is spent, outside its window."""
    first = _counted(request_of(1, (1,)), 1)
    reuse = _counted(request_of(1, (1,), (), TimeWindow(900, None)), 2, digest=b"e" * 32)
    assert judge_knowing({}, [first, reuse])[0][1] == Verdict(Outcome.TX_ID_REUSED)


def test_a_conflict_comes_before_the_window_and_names_every_state_with_its_use() -> None:
    """Goal: all conflicting states, none else, hashed winners. Method: two spent of four states, window closed."""
    known = {b"s" + state(2): _spent(8, 1), b"s" + state(3): _spent(9, 2)}
    verdict = _judge_one(_counted(request_of(1, (1, 2), (3, 4), TimeWindow(900, None)), 5), known)
    assert verdict.outcome is Outcome.CONFLICT
    assert set(verdict.conflicts) == {
        Conflict(state(2), hash_of_tx_id(tx(8)), Usage.INPUT),
        Conflict(state(3), hash_of_tx_id(tx(9)), Usage.REFERENCE),
    }
    assert tx(8) not in msgspec.msgpack.encode(verdict)


def test_inputs_of_a_refused_request_stay_unspent() -> None:
    """Goal: all or nothing. Method: a conflict on one input leaves the other to the next request."""
    first, refused, next_one = (
        _counted(request_of(1, (1,)), 1),
        _counted(request_of(2, (1, 2)), 2),
        _counted(request_of(3, (2,)), 3),
    )
    assert [v.outcome for v in judge_knowing({}, [first, refused, next_one])[0]] == [
        Outcome.NOTARISED,
        Outcome.CONFLICT,
        Outcome.NOTARISED,
    ]


def test_spend_then_reference_conflicts_and_reference_then_spend_does_not() -> None:
    """Goal: references are checked in log order and consume nothing. Method: both orders in one batch."""
    spend, refer = request_of(1, (1,)), request_of(2, (), (1,))
    assert [v.outcome for v in judge_knowing({}, [_counted(spend, 1), _counted(refer, 2)])[0]] == [
        Outcome.NOTARISED,
        Outcome.CONFLICT,
    ]
    assert [v.outcome for v in judge_knowing({}, [_counted(refer, 1), _counted(spend, 2)])[0]] == [
        Outcome.NOTARISED
    ] * 2


@pytest.mark.parametrize(
    ("window", "judged_us", "inside"),
    [
        (TimeWindow(100, 200), 99, False),
        (TimeWindow(100, 200), 100, True),
        (TimeWindow(100, 200), 199, True),
        (TimeWindow(100, 200), 200, False),
        (TimeWindow(100, None), 99, False),
        (TimeWindow(100, None), 100, True),
        (TimeWindow(None, 200), 0, True),
        (TimeWindow(None, 200), 199, True),
        (TimeWindow(None, 200), 200, False),
        (TimeWindow(0, None), 0, True),
    ],
)
def test_a_window_is_half_open(window: TimeWindow, judged_us: int, inside: bool) -> None:
    """Goal: [from, until). Method: both sides of both ends."""
    outcome = _judge_one(_counted(request_of(1, (1,), (), window), 3, judged_us), {}).outcome
    assert outcome is (Outcome.NOTARISED if inside else Outcome.TIME_WINDOW_CLOSED)


def test_a_refusal_is_not_remembered() -> None:
    """Goal: too early may succeed later. Method: the same request before and inside its window."""
    request = request_of(1, (1,), (), TimeWindow(100, None))
    verdicts, added = judge_knowing({}, [_counted(request, 1, 99), _counted(request, 2, 100)])
    assert [v.outcome for v in verdicts] == [Outcome.TIME_WINDOW_CLOSED, Outcome.NOTARISED]
    assert added[b"t" + tx(1)][32:] == (2).to_bytes(8, "big")


@pytest.mark.parametrize(("recorded_at", "counts"), [(4, True), (5, False), (6, False)])
def test_only_what_was_recorded_at_a_lower_offset_counts(recorded_at: int, counts: bool) -> None:
    """Goal: rule 7. Method: input, reference and id in a newer index, recorded before, at and behind the record."""
    at = recorded_at.to_bytes(8, "big")
    for request in (request_of(1, (1,)), request_of(1, (), (1,))):
        verdict = _judge_one(_counted(request, 5), {b"s" + state(1): tx(9) + at})
        assert (verdict.outcome is Outcome.CONFLICT) is counts
    verdict = _judge_one(_counted(request_of(1), 5), {b"t" + tx(1): b"d" * 32 + at})
    assert verdict == Verdict(Outcome.NOTARISED, 4 if counts else 5)
    verdict = _judge_one(_counted(request_of(1), 5), {b"t" + tx(1): b"e" * 32 + at})
    assert verdict == (Verdict(Outcome.TX_ID_REUSED) if counts else Verdict(Outcome.NOTARISED, 5))


def test_the_time_judged_is_the_highest_stamp_so_far() -> None:
    """Goal: no clock of one active turns time back. Method: a late stamp, then earlier ones, across an activation."""
    maker = LogMaker()
    maker.barrier(1)
    maker.submit(request_of(1), stamp_us=500)
    closed = maker.submit(request_of(2, (1,), (), TimeWindow(None, 500)), stamp_us=10)
    opened = maker.submit(request_of(3, (2,), (), TimeWindow(500, 501)), stamp_us=20)
    maker.barrier(2)
    later = maker.submit(request_of(4, (3,), (), TimeWindow(None, 500)), stamp_us=499)
    run = run_product(maker.log)
    assert run.verdicts[closed].outcome is Outcome.TIME_WINDOW_CLOSED
    assert run.verdicts[opened].outcome is Outcome.NOTARISED
    assert run.verdicts[later].outcome is Outcome.TIME_WINDOW_CLOSED


def test_a_void_record_does_not_move_the_time() -> None:
    """Goal: only counting records have a stamp. Method: late and repeated records with high stamps."""
    maker = LogMaker()
    maker.barrier(1)
    maker.submit(request_of(1), stamp_us=5, sequence=0)
    maker.submit(request_of(1), stamp_us=900, sequence=0)
    maker.submit(request_of(1), stamp_us=900, activation_id=activation(7), sequence=1)
    assert run_product(maker.log).position.stamp_us == 5


def test_old_versions_of_the_rules_stay() -> None:
    """Goal: old records can always be judged. Method: every version up to the newest is there."""
    assert sorted(RULES) == list(range(1, RULES_VERSION + 1))
