"""The rules: the order of judgement, each outcome, windows, and what an offset in the index means."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest

from replica.notary.counted import CountedRequest
from replica.notary.errors import InvariantBroken
from replica.notary.records import request_record
from replica.notary.requests import Request, TimeWindow
from replica.notary.rules import (
    Conflict,
    Outcome,
    Usage,
    Verdict,
    hash_of_tx_id,
    judge,
    keys_of,
)
from replica.notary.terms import Terms
from tests.worlds.notary_logs import (
    FOR_EVER,
    IN_FORCE,
    PARTY,
    activation,
    begun,
    judge_knowing,
    request_of,
    run_product,
    state,
    submission_of,
    tx,
)


def _counted(request: Request, offset: int, judged_us: int = 50, digest: bytes = b"d" * 32) -> CountedRequest:
    record = request_record(2, activation(1), offset, judged_us, submission_of(request), 0)
    change = sha256(b"%d" % offset).digest()
    return CountedRequest(offset, offset, record, request, digest, Terms("user", "c", (PARTY,)), change, judged_us, 3)


def _spent(by: int, offset: int) -> bytes:
    return tx(by) + offset.to_bytes(8, "big")


def _judge_one(entry: CountedRequest, known: dict[bytes, bytes]) -> Verdict:
    return judge_knowing(known, [entry])[0][0]


def test_a_first_request_is_notarised_at_its_own_offset_and_recorded() -> None:
    """Goal: what the index gets. Method: one request with two inputs and a reference."""
    entry = _counted(request_of(1, (1, 2), (3,)), 7)
    verdicts, added, _ = judge_knowing({}, [entry])
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
        judge([entry], [keys_of(entry)], [None] * told, [None], [IN_FORCE])


def test_a_transaction_without_inputs_is_remembered_too() -> None:
    """Goal: reference-only and empty transactions are idempotent. Method: look at the entries and judge again."""
    first, again = _counted(request_of(1), 1), _counted(request_of(1), 9)
    verdicts, added, _ = judge_knowing({}, [first, again])
    assert list(added) == [b"t" + tx(1)]
    assert verdicts == [Verdict(Outcome.NOTARISED, 1), Verdict(Outcome.NOTARISED, 1)]


def test_a_retry_succeeds_although_its_window_closed_and_its_reference_was_spent() -> None:
    """Goal: same id and content come first. Method: notarise, spend the reference, close the window, ask again."""
    request = request_of(1, (1,), (2,), TimeWindow(None, 100))
    first = _counted(request, 1, judged_us=50)
    spender = _counted(request_of(2, (2,)), 2)
    again = _counted(request, 3, judged_us=500)
    verdicts, _, _ = judge_knowing({}, [first, spender, again])
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
    verdicts, added, _ = judge_knowing({}, [_counted(request, 1, 99), _counted(request, 2, 100)])
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
    maker = begun()
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
    maker = begun()
    maker.submit(request_of(1), stamp_us=5, sequence=1)
    maker.submit(request_of(1), stamp_us=900, sequence=1)
    maker.submit(request_of(1), stamp_us=900, activation_id=activation(7), sequence=2)
    assert run_product(maker.log).position.stamp_us == 5


# ---- the command first ----

DEDUPLICATED, REUSED = Outcome.DEDUPLICATED, Outcome.COMMAND_ID_REUSED


def test_a_command_that_was_accepted_is_answered_with_its_recorded_success_first() -> None:
    """Goal: step 1, before anything else. Method: spend its reference, close its window, send it again."""
    maker, request = begun(), request_of(1, (1,), (2,), TimeWindow(None, 100))
    first = maker.submit(request, stamp_us=50, command="c")
    maker.submit(request_of(2, (2,)), stamp_us=200)
    again = maker.submit(request, stamp_us=300, command="c", submission="another")
    run = run_product(maker.log)
    assert run.verdicts[again] == Verdict(DEDUPLICATED, first)
    assert len(run.acceptances) == 2  # a deduplicated verdict is none


def test_a_recorded_success_names_where_its_transaction_was_first_notarised() -> None:
    """Goal: the offset of the transaction, not of the acceptance. Method: another command had notarised it before."""
    maker = begun()
    first = maker.submit(request_of(1), command="a")
    repeats = maker.submit(request_of(1), command="b")
    again = maker.submit(request_of(1), command="b")
    run = run_product(maker.log)
    assert run.verdicts[repeats] == Verdict(Outcome.NOTARISED, first)
    assert run.verdicts[again] == Verdict(DEDUPLICATED, first)


def test_a_command_of_another_transaction_or_other_content_is_reused_whatever_its_states() -> None:
    """Goal: step 2, before conflict and reuse of the id. Method: another id whose input is spent; the same id."""
    maker = begun()
    maker.submit(request_of(1, (1,)), command="c")
    other_id = maker.submit(request_of(2, (1,)), command="c")
    other_content = maker.submit(request_of(1, (2,)), command="c")
    run = run_product(maker.log)
    assert run.verdicts[other_id] == run.verdicts[other_content] == Verdict(REUSED)


@pytest.mark.parametrize(
    ("command", "accepted", "outcome"),
    [
        (tx(1).hex(), 1, Outcome.TX_ID_REUSED),
        (tx(1).hex().upper(), 1, REUSED),  # a caller chose it
        (tx(1).hex(), 3, REUSED),  # of another transaction: a caller chose it, there or here
        (tx(3).hex(), 1, REUSED),  # named after another transaction than its own
    ],
)
def test_a_command_that_is_named_after_its_transaction_is_not_reused(
    command: str, accepted: int, outcome: Outcome
) -> None:
    """Goal: nobody chose the command id, so the transaction id was used twice. Method: other content under it."""
    maker = begun()
    maker.submit(request_of(accepted, (1,)), command=command)
    other = maker.submit(request_of(1, (2,)), command=command)
    assert run_product(maker.log).verdicts[other] == Verdict(outcome)


@pytest.mark.parametrize(("later_us", "outcome"), [(0, DEDUPLICATED), (9, DEDUPLICATED), (10, Outcome.NOTARISED)])
def test_an_acceptance_counts_within_the_period_of_the_record(later_us: int, outcome: Outcome) -> None:
    """Goal: at most the period, by the times judged. Method: at once, at its end and one microsecond after."""
    maker = begun()
    maker.submit(request_of(1), stamp_us=100, command="c")
    again = maker.submit(request_of(1), stamp_us=100 + later_us, command="c", deduplication_us=9)
    assert run_product(maker.log).verdicts[again].outcome is outcome


def test_an_acceptance_at_the_same_time_counts_even_without_a_period() -> None:
    """Goal: two submissions at one time are not both accepted. Method: a period of 0; then a microsecond passes."""
    maker = begun()
    maker.submit(request_of(1), stamp_us=100, command="c")
    same = maker.submit(request_of(2), stamp_us=100, command="c", deduplication_us=0)
    later = maker.submit(request_of(2), stamp_us=101, command="c", deduplication_us=0)
    run = run_product(maker.log)
    assert [run.verdicts[at].outcome for at in (same, later)] == [REUSED, Outcome.NOTARISED]


def test_both_times_of_a_period_are_the_highest_stamps_so_far() -> None:
    """Goal: no clock of one active moves a period. Method: an accepted command and its retry with stamps too early."""
    maker = begun()
    maker.submit(request_of(9), stamp_us=100)
    maker.submit(request_of(1), stamp_us=5, command="c")  # judged at 100
    within = maker.submit(request_of(1), stamp_us=110, command="c", deduplication_us=10)
    maker.submit(request_of(8), stamp_us=111)
    after = maker.submit(request_of(1), stamp_us=6, command="c", deduplication_us=10)  # judged at 111
    run = run_product(maker.log)
    assert [run.verdicts[at].outcome for at in (within, after)] == [DEDUPLICATED, Outcome.NOTARISED]


@pytest.mark.parametrize(("after", "outcome"), [(0, DEDUPLICATED), (1, Outcome.NOTARISED), (2, Outcome.NOTARISED)])
def test_an_acceptance_counts_after_the_ledger_offset_that_was_signed(after: int, outcome: Outcome) -> None:
    """Goal: above it, not at it. Method: an acceptance at ledger offset 1, and offsets on both sides."""
    maker = begun()
    assert maker.submit(request_of(1), command="c") == 3
    again = maker.submit(request_of(1), command="c", after=after)
    assert run_product(maker.log).verdicts[again].outcome is outcome


def test_an_offset_above_the_records_own_leaves_nothing_to_count() -> None:
    """Goal: no verdict from what is not in the log yet, and no error. Method: the record's own offset, and the largest.

    The front ends refuse an offset above the end of the ledger, so no caller gets that far.
    """
    maker = begun()
    maker.submit(request_of(1), command="c")
    for after in (len(maker.values), FOR_EVER):
        again = maker.submit(request_of(1), command="c", after=after)
        assert run_product(maker.log).verdicts[again].outcome is Outcome.NOTARISED


def test_the_newest_acceptance_below_the_record_decides() -> None:
    """Goal: a later acceptance replaces the first, for periods and for what is the same. Method: two transactions, one
    after the other's period; the second again, the first again; each judged on the index of all of them as well."""
    maker = begun()
    maker.submit(request_of(1), stamp_us=0, command="c")
    within = maker.submit(request_of(1), stamp_us=10, command="c", deduplication_us=10)
    second = maker.submit(request_of(2), stamp_us=20, command="c", deduplication_us=10)
    again = maker.submit(request_of(2), stamp_us=25, command="c", deduplication_us=10)
    first = maker.submit(request_of(1), stamp_us=25, command="c", deduplication_us=10)
    run = run_product(maker.log)
    expected = {
        within: Verdict(DEDUPLICATED, 3),
        second: Verdict(Outcome.NOTARISED, second),
        again: Verdict(DEDUPLICATED, second),
        first: Verdict(REUSED),
    }
    assert expected.items() <= run.verdicts.items()
    assert run_product(maker.log, [4, 5, 6], newer=run).verdicts == run.verdicts
    assert run_product(maker.log, [4]).verdicts == run.verdicts  # the first is in the index, the second in the batch


def test_a_retry_does_not_prolong_the_period() -> None:
    """Goal: a deduplicated verdict is no acceptance. Method: retries nearer to one another than the period."""
    maker = begun()
    sent = [maker.submit(request_of(1), stamp_us=at, command="c", deduplication_us=10) for at in (0, 6, 12, 18)]
    run = run_product(maker.log)
    assert [run.verdicts[at].outcome for at in sent] == [
        Outcome.NOTARISED,
        DEDUPLICATED,
        Outcome.NOTARISED,
        DEDUPLICATED,
    ]


def test_refusals_of_a_command_are_not_remembered() -> None:
    """Goal: only acceptances count. Method: a conflict, a closed window and a reused id, then a good request."""
    maker = begun()
    maker.submit(request_of(1, (1,)), command="a")
    for refused in (request_of(2, (1,)), request_of(3, (), (), TimeWindow(None, 5)), request_of(1, (2,))):
        maker.submit(refused, command="c")
    good = maker.submit(request_of(4, (2,)), command="c")
    run = run_product(maker.log)
    assert list(run.verdicts.values())[-1] == Verdict(Outcome.NOTARISED, good)
    assert len(run.acceptances) == 2


def test_an_acceptance_is_stored_as_the_formats_say() -> None:
    """Goal: key and value of the first and of later ones. Method: two acceptances of one command, byte by byte."""
    maker = begun()
    maker.submit(request_of(1), stamp_us=7, command="c")
    maker.submit(request_of(2), stamp_us=9, command="c", deduplication_us=1)
    run = run_product(maker.log)
    requests = [run.counted[at] for at in (3, 4)]
    key = b"c" + requests[0].change_id
    assert run.acceptances == {
        key: tx(1) + requests[0].content_digest + b"".join(number.to_bytes(8, "big") for number in (7, 1, 3)),
        key + (4).to_bytes(8, "big"): tx(2)
        + requests[1].content_digest
        + b"".join(number.to_bytes(8, "big") for number in (9, 2, 4)),
    }


def test_notes_about_others_count_and_change_no_verdict() -> None:
    """Goal: they take a sequence number, and nothing else. Method: late stamps in them, each a second time."""
    maker = begun()
    maker.submit(request_of(1), stamp_us=5, command="c")
    notes = [maker.act(stamp_us=900), maker.register(stamp_us=900), maker.salvage(3, 3)]
    repeats = [maker.raw(maker.values[at]) for at in notes]
    again = maker.submit(request_of(1), stamp_us=6, command="c", deduplication_us=1)
    run = run_product(maker.log)
    assert run.voids == dict.fromkeys(repeats, "repeat")
    assert run.verdicts == {3: Verdict(Outcome.NOTARISED, 3), again: Verdict(DEDUPLICATED, 3)}
    assert run.position.stamp_us == 6
    assert len(run.acceptances) == 1


def test_a_request_is_not_judged_where_its_acceptance_or_its_key_was_not_looked_up() -> None:
    """Goal: a command whose acceptance was not looked up would pass for fresh. Method: one for two requests; likewise
    of registrations."""
    record = request_record(2, activation(1), 7, 50, submission_of(request_of(1)), FOR_EVER)
    entry = CountedRequest(7, 1, record, request_of(1), b"d" * 32, Terms("user", "c", (PARTY,)), bytes(32), 50, 3)
    with pytest.raises(InvariantBroken, match="1 commands for 2 requests"):
        judge([entry, entry], [keys_of(entry)] * 2, [None] * 2, [None], [IN_FORCE] * 2)
    with pytest.raises(InvariantBroken, match="1 keys for 2 requests"):
        judge([entry, entry], [keys_of(entry)] * 2, [None] * 2, [None] * 2, [IN_FORCE])
