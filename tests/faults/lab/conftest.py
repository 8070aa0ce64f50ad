"""One lab for all of its scenarios. They run one after the other, each on the state that the last one left.

After a scenario that failed there is a new lab.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from replica.local.cluster import LogKind
from tests.ends import none_ends_unasked
from tests.faults.lab.lab import Lab, machines_of
from tests.faults.lab.namespaces import Namespaces
from tests.faults.renewed import Renewed
from tests.log_kind import is_embedded, log_of, serving_of


@asynccontextmanager
async def _running(log: LogKind, embedded: bool, further: Mapping[str, Any]) -> AsyncIterator[Lab]:
    """A lab, on a short path that other accounts may enter."""
    parent = Path(tempfile.mkdtemp(prefix="notary-lab-"))
    parent.chmod(0o755)
    network = Namespaces(machines_of(log, embedded))
    try:
        network.start()
        async with Lab(parent / "lab", network, log, embedded, further) as running:
            yield running
        if not embedded:
            await running.postgres.remove()
    finally:
        network.stop()
        shutil.rmtree(parent, ignore_errors=True)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def labs(request: pytest.FixtureRequest) -> AsyncIterator[Renewed[Lab]]:
    """Where `lab` comes from."""
    labs = Renewed(partial(_running, log_of(request.config), is_embedded(request.config), serving_of(request.config)))
    yield labs
    await labs.drop()


@pytest_asyncio.fixture(loop_scope="session")
async def lab(labs: Renewed[Lab], request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    """The running lab. Where it cannot be built its scenarios fail: one that was left out proves nothing."""
    async with labs.lent_to(request.node) as lab:
        with none_ends_unasked(lab.replicas):
            yield lab
