"""One cluster for all fault scenarios of a module. They run one after the other, each on the state that the last left.

After a scenario that failed there is a new cluster. `--log-kind` chooses where the log is.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from tests.ends import none_ends_unasked
from tests.faults.recorder import pytest_addoption, pytest_runtest_makereport, pytest_runtest_setup, scenario
from tests.faults.renewed import Renewed
from tests.log_kind import is_embedded, log_of, serving_of

__all__ = [
    "cluster",
    "pytest_addoption",
    "pytest_runtest_makereport",
    "pytest_runtest_setup",
    "scenario",
]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder on a short path that other accounts may enter: for root, Postgres runs under an account of its own."""
    parent = Path(tempfile.mkdtemp(prefix="notary-faults-"))
    parent.chmod(0o755)
    yield parent
    shutil.rmtree(parent, ignore_errors=True)


@asynccontextmanager
async def _running(settings: Mapping[str, Any]) -> AsyncIterator[LocalCluster]:
    """Three replicas, one broker or none, one database server or none, on a short path that other accounts may enter.

    `settings`: fields of ClusterSettings.
    """
    parent = Path(tempfile.mkdtemp(prefix="notary-faults-"))
    parent.chmod(0o755)
    try:
        async with LocalCluster(ClusterSettings(folder=parent / "cluster", **settings)) as running:
            yield running
        await remove_cluster(parent / "cluster")
    finally:
        shutil.rmtree(parent, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(request: pytest.FixtureRequest) -> AsyncIterator[Renewed[LocalCluster]]:
    """Where `cluster` comes from. A log that is no longer than a module's scenarios make it is soon judged.

    A module's FURTHER are settings on top of a cluster's own, nested as in the configuration file.
    """
    settings = {
        "log": log_of(request.config),
        "embedded": is_embedded(request.config),
        "haproxy": True,
        "further": serving_of(request.config) | getattr(request.module, "FURTHER", {}),
    }
    clusters = Renewed(partial(_running, settings))
    yield clusters
    await clusters.drop()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(clusters: Renewed[LocalCluster], request: pytest.FixtureRequest) -> AsyncIterator[LocalCluster]:
    """The module's cluster."""
    async with clusters.lent_to(request.node) as cluster:
        with none_ends_unasked(cluster.replicas):
            yield cluster
