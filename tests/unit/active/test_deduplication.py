"""Deduplication periods: what is honoured is remembered in full, and what is not remembered is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.active.deduplication import Period, Remembered, period_of
from replica.link.interface import SubmitOptions
from replica.notary.answers import DeduplicationBound
from replica.notary.requests import DEDUPLICATION_LIMIT_S

NOW_US = 1_800_000_000_000_000
DAY_US = 86_400_000_000
UNPRUNED = Remembered(7 * 86_400.0)
PRUNED = Remembered(7 * 86_400.0, 100, NOW_US - 3 * DAY_US)
SECONDS = st.floats(0, DEDUPLICATION_LIMIT_S)
OFFSETS = st.integers(0, 2**63 - 1)
OPTIONS = (
    st.just(SubmitOptions())
    | SECONDS.map(lambda s: SubmitOptions(False, s))
    | OFFSETS.map(lambda after: SubmitOptions(False, None, after))
)


@pytest.mark.parametrize(
    ("options", "remembered", "expected"),
    [
        (SubmitOptions(), UNPRUNED, Period(NOW_US - 7 * DAY_US, 0, 7 * DAY_US)),
        (SubmitOptions(deduplication_s=7 * 86_400.0), UNPRUNED, Period(NOW_US - 7 * DAY_US, 0, 7 * DAY_US)),
        (SubmitOptions(deduplication_s=7 * 86_400.0 + 1), UNPRUNED, DeduplicationBound(7 * 86_400.0, 0)),
        (SubmitOptions(deduplication_after=0), UNPRUNED, Period(0, 0)),
        (SubmitOptions(), PRUNED, Period(NOW_US - 3 * DAY_US + 1, 100, 3 * DAY_US - 1)),
        (SubmitOptions(deduplication_s=2 * 86_400.0), PRUNED, Period(NOW_US - 2 * DAY_US, 0, 2 * DAY_US)),
        (SubmitOptions(deduplication_s=3 * 86_400.0), PRUNED, DeduplicationBound(3 * 86_400.0 - 1e-6, 100)),
        (SubmitOptions(deduplication_after=100), PRUNED, Period(0, 100)),
        (SubmitOptions(deduplication_after=99), PRUNED, DeduplicationBound(3 * 86_400.0 - 1e-6, 100)),
        (SubmitOptions(deduplication_after=0), PRUNED, DeduplicationBound(3 * 86_400.0 - 1e-6, 100)),
    ],
)
def test_a_period_is_honoured_in_full_or_refused(
    options: SubmitOptions, remembered: Remembered, expected: Period | DeduplicationBound
) -> None:
    """Goal: never silently shortened. Method: on each bound and beyond it, before and after pruning."""
    assert period_of(options, remembered, NOW_US) == expected


@given(OPTIONS, SECONDS, OFFSETS, st.integers(0, NOW_US))
def test_whatever_is_honoured_is_remembered_and_fits_a_database(
    options: SubmitOptions, max_s: float, pruned_to: int, pruned_us: int
) -> None:
    """Goal: no acceptance that counts may be gone. Method: any options, any bound: one that may be gone is outside."""
    found = period_of(options, Remembered(max_s, pruned_to, pruned_us), NOW_US)
    if isinstance(found, Period):
        assert found.after >= pruned_to or found.since_us > pruned_us
        assert -(2**63) <= found.since_us < 2**63
        if options.deduplication_s is not None:
            duration_us = round(options.deduplication_s * 1e6)
            assert found == Period(NOW_US - duration_us, 0, duration_us)
    else:
        assert 0 <= found.longest_s <= max_s
        assert found.earliest_offset == pruned_to
