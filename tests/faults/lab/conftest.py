"""One lab for all of its scenarios: they run one after the other, each on what the last one left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from tests.faults.lab.lab import Lab, lab_network


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def lab() -> AsyncIterator[Lab]:
    """The running lab. Where it cannot be built its scenarios fail: one that was left out proves nothing."""
    parent = Path(tempfile.mkdtemp(prefix="notary-lab-"))
    parent.chmod(0o755)
    network = lab_network()
    try:
        network.start()
        async with Lab(parent / "lab", network) as running:
            yield running
        await running.postgres.remove()
    finally:
        network.stop()
        shutil.rmtree(parent, ignore_errors=True)
