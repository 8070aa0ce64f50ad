"""Deduplication periods: what is honoured is remembered in full, and what is not remembered is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replica.active.deduplication import Period, Remembered, period_of
from replica.link.interface import Terms
from replica.notary.answers import DeduplicationBound
from replica.notary.requests import DEDUPLICATION_LIMIT_S

NOW_US = 1_800_000_000_000_000
DAY_US = 86_400_000_000
UNPRUNED = Remembered(7 * 86_400.0)
PRUNED = Remembered(7 * 86_400.0, 100, NOW_US - 3 * DAY_US)
SECONDS = st.floats(0, DEDUPLICATION_LIMIT_S)
OFFSETS = st.integers(0, 2**63 - 1)
TERMS = st.just(Terms()) | SECONDS.map(lambda s: Terms(False, s)) | OFFSETS.map(lambda after: Terms(False, None, after))


@pytest.mark.parametrize(
    ("terms", "remembered", "expected"),
    [
        (Terms(), UNPRUNED, Period(NOW_US - 7 * DAY_US, 0, 7 * DAY_US)),
        (Terms(deduplication_s=7 * 86_400.0), UNPRUNED, Period(NOW_US - 7 * DAY_US, 0, 7 * DAY_US)),
        (Terms(deduplication_s=7 * 86_400.0 + 1), UNPRUNED, DeduplicationBound(7 * 86_400.0, 0)),
        (Terms(deduplication_after=0), UNPRUNED, Period(0, 0)),
        (Terms(), PRUNED, Period(NOW_US - 3 * DAY_US + 1, 100, 3 * DAY_US - 1)),
        (Terms(deduplication_s=2 * 86_400.0), PRUNED, Period(NOW_US - 2 * DAY_US, 0, 2 * DAY_US)),
        (Terms(deduplication_s=3 * 86_400.0), PRUNED, DeduplicationBound(3 * 86_400.0 - 1e-6, 100)),
        (Terms(deduplication_after=100), PRUNED, Period(0, 100)),
        (Terms(deduplication_after=99), PRUNED, DeduplicationBound(3 * 86_400.0 - 1e-6, 100)),
        (Terms(deduplication_after=0), PRUNED, DeduplicationBound(3 * 86_400.0 - 1e-6, 100)),
    ],
)
def test_a_period_is_honoured_in_full_or_refused(
    terms: Terms, remembered: Remembered, expected: Period | DeduplicationBound
) -> None:
    """Goal: never silently shortened. Method: on each bound and beyond it, before and after pruning."""
    assert period_of(terms, remembered, NOW_US) == expected


@given(TERMS, SECONDS, OFFSETS, st.integers(0, NOW_US))
def test_whatever_is_honoured_is_remembered_and_fits_a_database(
    terms: Terms, max_s: float, pruned_to: int, pruned_us: int
) -> None:
    """Goal: no acceptance that counts may be gone. Method: any terms, any bound: one that may be gone is outside."""
    found = period_of(terms, Remembered(max_s, pruned_to, pruned_us), NOW_US)
    if isinstance(found, Period):
        assert found.after >= pruned_to or found.since_us > pruned_us
        assert -(2**63) <= found.since_us < 2**63
        if terms.deduplication_s is not None:
            duration_us = round(terms.deduplication_s * 1e6)
            assert found == Period(NOW_US - duration_us, 0, duration_us)
    else:
        assert 0 <= found.longest_s <= max_s
        assert found.earliest_offset == pruned_to
