"""What every unit test leaves as it found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    """A command that a test runs makes the log quiet; the tests after it read log lines."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)
