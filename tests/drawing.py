"""Examples that Hypothesis draws for a test that is no generated one itself: a server's, say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st


def drawn(strategy: st.SearchStrategy[Any], examples: int, call: Callable[[Any], None]) -> None:
    """Call with so many examples of a strategy, the same ones in every run."""

    @given(strategy)
    @settings(
        max_examples=examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def check(example: Any) -> None:
        call(example)

    check()
