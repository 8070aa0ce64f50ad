"""The comparison of logs covers every goal."""

from __future__ import annotations

import pytest

from tests.bench.logs import GOALS, ratios


def test_every_goal_has_its_ratio_or_the_bench_fails() -> None:
    """Goal: no goal is left out without an error. Method: all figures; then each one missing on either side."""
    ours, theirs = (dict.fromkeys(GOALS.values(), figure) for figure in (3.0, 2.0))
    assert ratios(ours, theirs) == dict.fromkeys(GOALS, 1.5)
    for figure in GOALS.values():
        lacking = {name: value for name, value in ours.items() if name != figure}
        for one, other in ((lacking, theirs), (ours, lacking)):
            with pytest.raises(KeyError, match=figure):
                ratios(one, other)
