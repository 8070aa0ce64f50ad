"""When a front end is started anew."""

from __future__ import annotations

import pytest

from replica.link.settings import LinkSettings
from replica.operators.front_ends import UNCONNECTED_MAX_S, hangs

FORGIVEN_S = 2.5 + 0.4  # a stall that costs no connection, seen with two looks' delay


@pytest.mark.parametrize(
    ("silent_s", "unconnected_s", "any_counts", "expected"),
    [
        (0.0, 0.0, True, False),
        (FORGIVEN_S, 0.0, True, False),
        (FORGIVEN_S, 0.0, False, False),
        (3.0, 0.0, True, False),  # others answer: its own connections may still be saved
        (3.0, 0.0, False, True),
        (5.0, 0.0, True, True),
        (None, UNCONNECTED_MAX_S - 1, False, False),
        (None, UNCONNECTED_MAX_S, True, True),
    ],
)
def test_silence_ends_one_sooner_where_none_counts(
    silent_s: float | None, unconnected_s: float, any_counts: bool, expected: bool
) -> None:
    """Goal: a stall that is forgiven kills nobody; all that hang are replaced as soon as none counts. Method: the
    decision at each bound of the default settings."""
    assert hangs(silent_s, unconnected_s, any_counts, LinkSettings()) is expected
