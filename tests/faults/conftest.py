"""One cluster for all fault scenarios of a session: they run one after the other, each on what the last one left."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from tests.faults.recorder import pytest_runtest_makereport, pytest_runtest_setup, scenario

__all__ = ["cluster", "pytest_runtest_makereport", "pytest_runtest_setup", "scenario"]


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def cluster() -> AsyncIterator[LocalCluster]:
    """A running cluster of three replicas, on a short path that other accounts may enter."""
    parent = Path(tempfile.mkdtemp(prefix="notary-faults-"))
    parent.chmod(0o755)
    try:
        async with LocalCluster(ClusterSettings(folder=parent / "cluster")) as running:
            yield running
        await remove_cluster(parent / "cluster")
    finally:
        shutil.rmtree(parent, ignore_errors=True)
