"""For folders whose tests were not all seen yet without a warning: there warnings are told, and fail nothing.

Everywhere else they are errors (`filterwarnings` in pyproject.toml). A folder's conftest imports the hook.
"""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Warnings do not fail the tests of a run that has this folder in it."""
    config.addinivalue_line("filterwarnings", "default")
