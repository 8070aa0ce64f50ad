"""What is called final stays so; what is not may be followed by another verdict under the same ids."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.notary.answers import Notarised, Refused
from replica.notary.canonical import encode_request
from replica.notary.catalogue import catalogue
from replica.notary.codes import Code, Retry
from replica.notary.counted import CountedRequest
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.records import encode_record, request_record
from replica.notary.requests import Request, Submission, TimeWindow
from replica.notary.rules import Outcome, Verdict
from tests.simulation.virtual import run_virtually
from tests.worlds.core_world import World, submission
from tests.worlds.notary_logs import LogMaker, judge_knowing, request_of, submission_of

CODES = {
    Outcome.TX_ID_REUSED: "TX_ID_REUSED",
    Outcome.CONFLICT: "STATE_CONFLICT",
    Outcome.TIME_WINDOW_CLOSED: "TIME_WINDOW_CLOSED",
}
WINDOWS = st.none() | st.builds(
    lambda from_us, length_us: TimeWindow(from_us, None if length_us is None else from_us + length_us),
    st.integers(0, 8),
    st.none() | st.integers(1, 4),
)
REQUESTS = st.builds(
    lambda tx, inputs, window: request_of(tx, tuple(inputs), (), window),
    st.integers(0, 2),
    st.sets(st.integers(0, 2), max_size=2),
    WINDOWS,
)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(REQUESTS, st.integers(0, 3)), min_size=2, max_size=10))
def test_after_a_final_refusal_the_same_request_is_never_notarised(asked: list[tuple[Request, int]]) -> None:
    """Goal: `final` is true of the rules. Method: short logs over few ids, states and times, all asked again."""
    index: dict[bytes, bytes] = {}
    finally_refused: set[bytes] = set()
    log, stamp_us = LogMaker(), 0
    log.barrier(1)
    for request, step_us in [*asked, *asked]:
        stamp_us += step_us
        log.sequence += 1
        log.raw(encode_record(request_record(2, log.activation_id, log.sequence, stamp_us, submission_of(request), 0)))
    entries = read_records(begin("topic"), log.log).counted
    for entry in entries:
        assert isinstance(entry, CountedRequest)
        (verdict,), added, _ = judge_knowing(index, [entry])
        index |= added
        raw = encode_request(entry.request)
        if verdict.outcome is Outcome.NOTARISED:
            assert raw not in finally_refused
        elif _refused(entry, verdict).final:
            finally_refused.add(raw)


def _refused(entry: CountedRequest, verdict: Verdict) -> Refused:
    tx_id = entry.request.tx_id
    return Refused(CODES[verdict.outcome], tx_id, judged_us=entry.judged_us, window=entry.request.window)


def test_a_request_that_came_too_early_is_notarised_later_under_the_same_ids() -> None:
    """Goal: the documents describe what happens. Method: one submission, before its window and in it; two
    completions."""

    async def story() -> None:
        async with World() as world:
            replica = await world.replica()
            await replica.until_active()
            opens_us = replica.shared.clock.wall_us() + 5_000_000
            early: Submission = submission(1, window=TimeWindow(opens_us, None))
            (refused,) = await replica.submit(early)
            assert isinstance(refused, Refused)
            assert (refused.code, refused.final) == ("TIME_WINDOW_CLOSED", False)
            await replica.shared.clock.sleep_s(6)
            (answer,) = await replica.submit(early)
            assert isinstance(answer, Notarised)

    run_virtually(story())


@pytest.mark.parametrize(
    ("judged_us", "window", "final"),
    [(5, TimeWindow(None, 5), True), (4, TimeWindow(5, 9), False), (9, TimeWindow(5, 9), True), (4, None, False)],
)
def test_a_closed_window_is_final_once_it_is_over(judged_us: int, window: TimeWindow | None, final: bool) -> None:
    """Goal: too late is for ever, too early is not. Method: times at and around both ends."""
    assert Refused("TIME_WINDOW_CLOSED", bytes(32), judged_us=judged_us, window=window).final is final


def test_the_catalogue_says_which_codes_are_final() -> None:
    """Goal: a client need not know our code. Method: the served document; nothing final may be sent again."""
    final = {entry.code for entry in catalogue().codes if entry.final}
    assert final == {"STATE_CONFLICT", "TX_ID_REUSED"}
    assert all(Code[code].retry is Retry.NO for code in final)
    assert not Refused("A_CODE_OF_A_LATER_RELEASE", bytes(32)).final
