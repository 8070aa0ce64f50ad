"""For folders whose tests kill real servers and cut connections: what was not closed is told there, and fails nothing.

Such a socket or file is found by the garbage collector whenever it runs, in whichever test that is. Every other warning
is an error there as it is elsewhere (`filterwarnings` in pyproject.toml). A folder's conftest imports the hook.
"""

from __future__ import annotations

import pytest

_TOLD = ("default::ResourceWarning", "default::pytest.PytestUnraisableExceptionWarning")


def pytest_configure(config: pytest.Config) -> None:
    """What was not closed does not fail the tests of a run that has this folder in it."""
    for line in _TOLD:
        config.addinivalue_line("filterwarnings", line)
