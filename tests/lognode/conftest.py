"""The log node's tests start real processes and real links."""

from __future__ import annotations

from tests.warned import pytest_configure  # noqa: F401 - a hook
