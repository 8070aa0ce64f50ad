"""What clients noticed of a fault, from histories made by hand."""

from __future__ import annotations

import pytest

from replica.checker.history import CommandIds, Event, Invoke, Ok, Refused, Unknown
from tests.bench.worker_calls import (
    Call,
    back_after_s,
    between,
    calls,
    longest_s,
    quantile_s,
    unanswered,
    whole,
    within,
)

S = 1_000_000_000
HASH = "ab" * 32


def invoke(op: int, at_s: float, command: str) -> Invoke:
    return Invoke("p", op, int(at_s * S), HASH, command=CommandIds("bank", command, (), None))


def ok(op: int, at_s: float) -> Ok:
    return Ok("p", op, int(at_s * S), HASH, 1)


def unknown(op: int, at_s: float) -> Unknown:
    return Unknown("p", op, int(at_s * S), "OUTCOME_UNKNOWN")


HISTORY: list[Event] = [
    invoke(1, 1.0, "a"),
    ok(1, 1.1),
    invoke(2, 1.9, "b"),
    Invoke("p", 3, 2 * S, HASH),  # a look-up
    unknown(2, 2.5),
    unknown(3, 2.5),
    invoke(4, 2.6, "b"),
    Refused("p", 4, int(2.8 * S), "STATE_CONSUMED"),
]


def test_calls_are_submissions_in_the_order_of_their_ends() -> None:
    """Goal: look-ups do not count, a refusal is an answer, and no answer is none."""
    found = list(calls(HISTORY))
    assert [call.answered for call in found] == [True, False, True]
    assert found[1].submission == found[2].submission != found[0].submission
    assert unanswered(found) == 1
    assert longest_s(found) == pytest.approx(0.6)
    assert longest_s([]) == 0.0


def test_a_whole_submission_is_from_its_first_attempt_to_its_answer() -> None:
    """Goal: attempts of one submission are one, and one that was given up stays without an answer."""
    found = {call.submission: call for call in whole(calls(HISTORY))}
    assert len(found) == 2
    assert [round(call.took_s, 3) for call in found.values()] == [0.1, 0.9]
    given_up = whole(calls(HISTORY[:6]))
    assert unanswered(given_up) == 1


def test_clients_are_back_when_the_unluckiest_submission_has_its_answer() -> None:
    """Goal: time is counted from the fault, or from a later beginning; a submission without an answer is an error."""
    found = whole(calls(HISTORY))
    assert back_after_s(found, 2 * S, 5 * S) == pytest.approx(0.8)
    assert back_after_s(found, int(1.5 * S), 5 * S) == pytest.approx(0.9)
    assert back_after_s(found, 3 * S, 5 * S) == 0.0
    with pytest.raises(ValueError, match="1 submissions have no answer"):
        back_after_s(whole(calls(HISTORY[:6])), 2 * S, 5 * S)


def test_calls_around_a_time_touch_it() -> None:
    """Goal: a call that began before and ended within counts, one that ended before does not."""
    one, two = Call("a", 0, S, True), Call("b", S, 3 * S, True)
    assert between([one, two], 2 * S, 4 * S) == [two]
    assert between([one, two], S, 4 * S) == [one, two]
    assert within([one, two], 0, 2 * S) == [one]
    assert within([one, two], S, 3 * S) == [two]


def test_a_quantile_is_a_time_that_was_seen() -> None:
    """Goal: the share of calls up to it is at least the one asked for."""
    found = [Call(str(at), 0, at * S, True) for at in range(1, 1_001)]
    assert quantile_s(found, 0.999) == 999
    assert quantile_s(found[:1], 0.999) == 1
    with pytest.raises(ValueError, match="no call"):
        quantile_s([], 0.5)
