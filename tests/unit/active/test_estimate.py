"""The estimate: the reference's arithmetic, what makes a sample, and that retries do not make it drift."""

from __future__ import annotations

import asyncio
from math import trunc

import pytest

from replica.active.estimate import FACTOR, SAMPLES_MAX, SAMPLES_MIN, CompletionEstimate
from replica.notary.answers import Notarised, NotNow
from replica.notary.codes import Code
from replica.settings import CoreSettings
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import World, state, submission


def reference_s(samples_per_min: list[int], queued: int) -> int:
    """The formula of reference/notary.md: whole seconds, throughput in whole states a minute, ten when unknown."""
    ordered = sorted(samples_per_min[-100:])
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2 if count else 0
    return trunc(2 * 60 * queued / middle) if middle > 0 and queued > 0 else 10


@pytest.mark.parametrize(
    ("rates_per_s", "queued", "expected_s"),
    [
        ([], 500, 10),
        ([100] * 10, 0, 10),
        ([100] * 10, 1_000, 20),
        ([50, 50, 50, 50, 100, 100, 400, 400, 400, 400], 1_000, 20),
        ([10] * 99 + [10**6], 100, 20),
    ],
)
def test_the_reference_s_figures_come_out(rates_per_s: list[int], queued: int, expected_s: int) -> None:
    """Goal: two times queued states over the median throughput. Method: whole figures, against the reference's own."""
    estimate = CompletionEstimate(10.0)
    for rate in rates_per_s:
        estimate.note_batch(rate, 1.0, 10**9)
    assert trunc(estimate.wait_s(queued)) == expected_s == reference_s([60 * rate for rate in rates_per_s], queued)


def test_only_the_last_hundred_batches_count() -> None:
    """Goal: the estimate follows a change of speed. Method: many slow batches, then a hundred fast ones."""
    estimate = CompletionEstimate(10.0)
    for _ in range(1_000):
        estimate.note_batch(10, 1.0, 10**9)
    for _ in range(SAMPLES_MAX):
        estimate.note_batch(1_000, 1.0, 10**9)
    assert estimate.wait_s(500) == FACTOR * 500 / 1_000


def test_light_load_is_no_measure_of_what_could_be_done() -> None:
    """Goal: a burst after quiet hours gets no estimate of hours. Method: small batches with nothing behind them."""
    estimate = CompletionEstimate(0.1)
    for _ in range(500):
        assert estimate.note_batch(4, 0.01, 0)
    assert estimate.wait_s(100_000) == 0.1


def test_a_few_batches_are_no_measure_either() -> None:
    """Goal: a thousand clients at once do not hear of minutes, beyond which they give up. Method: the first batches of
    such a burst, as a replica that had just begun was seen to decide them; then enough of them."""
    estimate = CompletionEstimate(0.1)
    for states, elapsed_s, left_states in [(13, 0.076, 2_656), (102, 0.160, 4_125), (1_488, 0.080, 2_738)]:
        estimate.note_batch(states, elapsed_s, left_states)
        assert estimate.wait_s(left_states) == 0.1
    for _ in range(SAMPLES_MIN - 3):
        assert estimate.wait_s(4_000) == 0.1
        estimate.note_batch(1_000, 0.05, 4_000)
    assert estimate.wait_s(4_000) == FACTOR * 4_000 / 20_000


def test_batches_of_one_moment_are_one_sample() -> None:
    """Goal: no work is forgotten when two batches are decided at once. Method: half of it in no time at all."""
    estimate = CompletionEstimate(10.0)
    for _ in range(SAMPLES_MIN):
        assert not estimate.note_batch(50, 0.0, 10**9)
        assert estimate.note_batch(50, 1.0, 10**9)
    assert estimate.wait_s(100) == FACTOR * 100 / 100


@on_virtual_time
async def test_retries_do_not_make_the_queue_s_count_drift() -> None:
    """Goal: repeats, duplicates and refusals leave no states behind. Method: ask the same over and over, then rest."""
    async with World(core=CoreSettings(in_flight_max=6, user_queue_max=4)) as world:
        replica = await world.replica()
        await replica.until_active()
        codes: set[str] = set()
        for turn in range(20):
            again = [submission(n, [state(100 + n)], command_id=f"c{n % 5}") for n in range(1, 9)]
            answers = [
                a
                for call in await asyncio.gather(*[replica.submit(s) for s in again[:: (1, -1)[turn % 2]]])
                for a in call
            ]
            codes |= {a.code for a in answers if not isinstance(a, Notarised) and hasattr(a, "code")}
            await asyncio.sleep(0.05 * (turn % 3))
            assert all(a.retry_after_s > 0 for a in answers if isinstance(a, NotNow))
            assert replica.participant.standing().estimate_s == replica.participant.estimate_s > 0
        assert Code.COMMAND_ID_REUSED.name in codes
        assert Code.USER_OVERLOADED.name in codes
        await asyncio.sleep(1)
        assert (replica.participant.in_flight, replica.participant.states_in_flight) == (0, 0)


def test_the_states_of_a_time_are_those_of_the_median_throughput() -> None:
    """Goal: a time can bound a pipeline. Method: nothing known, then whole figures."""
    estimate = CompletionEstimate(10.0)
    assert estimate.states_in(0.1) is None
    for rate in (50, 100, 400):
        estimate.note_batch(rate, 1.0, 10**9)
    assert estimate.states_in(0.1) == 10
