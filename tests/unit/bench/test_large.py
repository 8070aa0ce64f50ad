"""From which request size splitting pays, by the rates that were measured."""

from __future__ import annotations

from tests.bench.large import pays_from, readers_needed


def test_the_crossing_is_the_smallest_size_above_which_splitting_always_pays() -> None:
    """Goal: a lucky run in the middle is no crossing. Method: rates with one, without one, and with a gap."""
    rates = {
        (1_000, 1): (100.0, 50.0),
        (9_000, 1): (100.0, 104.0),
        (1_000, 3): (100.0, 120.0),
        (9_000, 3): (100.0, 104.0),
        (30_000, 3): (100.0, 110.0),
        (1_000, 5): (100.0, 130.0),
        (9_000, 5): (100.0, 140.0),
    }
    assert [pays_from(rates, readers) for readers in (1, 3, 5)] == [None, 30_000, 1_000]
    assert readers_needed(rates) == 3
    assert readers_needed({(1_000, 1): (2.0, 1.0)}) is None
