"""Which of many like cases are quick: the first few; the others have the mark `thorough`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from _pytest.mark import ParameterSet


def few_quick(values: Sequence[int], quick: int) -> list[int | ParameterSet]:
    """The values of a test's parameter, all but the first `quick` of them marked `thorough`."""
    return [*values[:quick], *(pytest.param(value, marks=pytest.mark.thorough) for value in values[quick:])]
