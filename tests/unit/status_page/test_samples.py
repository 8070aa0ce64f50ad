"""The figures behind the status page's charts."""

from __future__ import annotations

import msgspec
import pytest

from replica.status_page.routes import Peer, with_latency
from replica.status_page.samples import SAMPLES_MAX, Reading, Samples, make_sample, quantile
from replica.telemetry.counts import LATENCY_BOUNDS_S

NOTHING = (0,) * (len(LATENCY_BOUNDS_S) + 1)
START = Reading(10.0, 1_000_000, {"NOTARISED": 100, "STATE_CONFLICT": 5}, NOTHING, True, 1, 0, 0, 1.0)


def test_rates_are_per_second_of_what_passed() -> None:
    """Goal: a late sample is no peak. Method: two seconds between readings; conflicts count as refused as well."""
    outcomes = {"NOTARISED": 300, "STATE_CONFLICT": 9, "TIME_WINDOW_CLOSED": 4}
    later = msgspec.structs.replace(START, at_s=12.0, wall_us=3_000_000, outcomes=outcomes)
    sample = make_sample(START, later)
    assert (sample.t_ms, sample.notarised, sample.refused, sample.conflicts) == (3_000, 100.0, 4.0, 2.0)
    assert (sample.p50_s, sample.p99_s) == (None, None)


def test_a_counter_that_began_anew_gives_no_negative_rate() -> None:
    """Goal: a front end that was restarted leaves no hole. Method: counters that fall."""
    later = msgspec.structs.replace(START, at_s=11.0, outcomes={"NOTARISED": 7})
    assert make_sample(START, later).notarised == 7.0


@pytest.mark.parametrize(
    ("counts", "share", "expected"),
    [
        ({}, 0.5, None),
        ({0: 10}, 0.5, 0.0005),
        ({0: 50, 2: 50}, 0.5, 0.001),
        ({0: 50, 2: 50}, 0.99, 0.0025 + 0.0025 * 49 / 50),
        ({len(LATENCY_BOUNDS_S): 1}, 0.5, LATENCY_BOUNDS_S[-1]),
    ],
)
def test_a_quantile_lies_inside_its_bucket(counts: dict[int, int], share: float, expected: float | None) -> None:
    """Goal: no figure that the histogram does not know. Method: all in one bucket, two buckets, beyond the last."""
    buckets = [counts.get(at, 0) for at in range(len(LATENCY_BOUNDS_S) + 1)]
    assert quantile(buckets, share) == (None if expected is None else pytest.approx(expected))


def test_only_the_newest_samples_are_kept() -> None:
    """Goal: bounded memory. Method: more readings than are kept, one with a clock that stands."""
    samples = Samples()
    for at in range(SAMPLES_MAX + 50):
        samples.note(msgspec.structs.replace(START, at_s=float(at), wall_us=at * 1_000_000))
    samples.note(msgspec.structs.replace(START, at_s=float(SAMPLES_MAX + 49), wall_us=0))
    kept = samples.after(0)
    assert len(kept) == SAMPLES_MAX
    assert samples.after(kept[-2].t_ms) == kept[-1:]


def test_the_latency_of_a_peer_is_that_of_its_newest_answers() -> None:
    """Goal: a passive's page shows the active's latency. Method: counters of two looks; a restart; an older release."""
    size = len(LATENCY_BOUNDS_S) + 1
    many, more = [0] * size, [0] * size
    many[0], more[0], more[3] = 1_000, 1_000, 10
    peer = Peer("r2", "http://r2", {"answers": more})
    assert with_latency(peer, {"answers": many}).p50_s == pytest.approx(
        LATENCY_BOUNDS_S[2] + (LATENCY_BOUNDS_S[3] - LATENCY_BOUNDS_S[2]) / 2
    )
    assert with_latency(peer, {"answers": more}).p50_s is None
    for before in (None, {}, {"answers": [1]}, {"answers": ["x"] * size}):
        assert with_latency(peer, before) == peer
