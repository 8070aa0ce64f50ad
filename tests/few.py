"""Which of many like cases are quick: the first few; the others have the mark `thorough`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet


def few_quick(values: Sequence[int], quick: int) -> list[int | ParameterSet]:
    """The values of a test's parameter, all but the first `quick` of them marked `thorough`."""
    return [*values[:quick], *(pytest.param(value, marks=pytest.mark.thorough) for value in values[quick:])]


def few_and_others(few: Sequence[int], values: Sequence[int]) -> list[ParameterSet]:
    """Two values of a test's parameter: the few, and with the mark `thorough` all others."""
    others = [value for value in values if value not in few]
    return [pytest.param([*few], id="few"), pytest.param(others, id="others", marks=pytest.mark.thorough)]
