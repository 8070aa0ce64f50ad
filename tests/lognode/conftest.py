"""The log node's tests start real processes and real links."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.lognode.nodes_here import NodesHere


@pytest.fixture
async def topic_under_test(tmp_path: Path) -> AsyncIterator[NodesHere]:
    nodes = NodesHere(tmp_path)
    await nodes.start()
    yield nodes
    await nodes.stop()
