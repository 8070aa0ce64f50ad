"""Lock ids: fixed for ever, so the vectors are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ha.lock.ids import Counter, lock_id

VECTORS = [  # scope, ids for counters 1, 2 and 39
    ("participant1", 856400896, 856400897, 856400934),
    ("canton", 763839488, 763839489, 763839526),
    ("postgres", 975528960, 975528961, 975528998),
    ("test", 861065216, 861065217, 861065254),
    ("", 591660544, 591660545, 591660582),
]


@pytest.mark.parametrize(("scope", "first", "second", "thirty_ninth"), VECTORS)
def test_ids_are_those_of_the_reference(scope: str, first: int, second: int, thirty_ninth: int) -> None:
    """Goal: every release computes the same ids. Method: the published vectors."""
    assert lock_id(scope, Counter.PARTICIPANT_WRITE) == first
    assert lock_id(scope, Counter.INDEXER_MAIN) == second
    assert lock_id(scope, Counter.PARTICIPANT_WRITERS) == thirty_ninth


def test_counters_have_their_numbers() -> None:
    """Goal: a renumbered counter is noticed. Method: those that other programs could hold as well."""
    assert (Counter.PARTICIPANT_WRITE, Counter.PARTICIPANT_WRITERS, Counter.NODE_MIGRATIONS) == (1, 39, 37)


@given(scope=st.text(max_size=80), counter=st.integers(1, 256))
def test_ids_stay_in_the_range_that_every_database_takes(scope: str, counter: int) -> None:
    """Goal: 30 bits, the counter in the low byte. Method: any scope and counter."""
    made = lock_id(scope, counter)
    assert 2**29 <= made < 2**30
    assert made & 0xFF == counter - 1


@pytest.mark.parametrize("counter", [-1, 0, 257])
def test_a_counter_out_of_range_is_refused(counter: int) -> None:
    """Goal: no counter spills into the scope's bits. Method: the values next to the range."""
    with pytest.raises(ValueError, match="counter"):
        lock_id("notary", counter)
