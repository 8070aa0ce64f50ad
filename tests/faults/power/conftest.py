"""The lab on disks that lose what was not synced. Scenarios run one after the other, each on the last one's state.

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
from tests.faults.lab.lab import machines_of
from tests.faults.lab.namespaces import Namespaces
from tests.faults.lab.power import LabOnDisks, machines_with_disks
from tests.faults.renewed import Renewed
from tests.log_kind import is_embedded, log_of, serving_of
from tests.lossy_disk import lossy_disks


@asynccontextmanager
async def running(
    log: LogKind, embedded: bool, further: Mapping[str, Any], disks_kind: str
) -> AsyncIterator[LabOnDisks]:
    """A lab, on a short path that other accounts may enter."""
    parent = Path(tempfile.mkdtemp(prefix="notary-lab-"))
    parent.chmod(0o755)
    network = Namespaces(machines_of(log, embedded))
    try:
        with lossy_disks(*machines_with_disks(log, embedded), kind=disks_kind) as disks:
            network.start()
            async with LabOnDisks(disks, parent / "lab", network, log, embedded, further) as lab:
                yield lab
    finally:
        network.stop()
        shutil.rmtree(parent, ignore_errors=True)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def labs(request: pytest.FixtureRequest) -> AsyncIterator[Renewed[LabOnDisks]]:
    """Where `lab` comes from. A module's LOG overrides the run's; its FURTHER are settings of the cluster."""
    log: LogKind | None = getattr(request.module, "LOG", None)
    embedded = log is None and is_embedded(request.config)
    further = serving_of(request.config) | getattr(request.module, "FURTHER", {})
    disks = request.config.getoption("--disks")
    labs = Renewed(partial(running, log or log_of(request.config), embedded, further, disks))
    yield labs
    await labs.drop()


@pytest_asyncio.fixture(loop_scope="session")
async def lab(labs: Renewed[LabOnDisks], request: pytest.FixtureRequest) -> AsyncIterator[LabOnDisks]:
    """The running lab."""
    async with labs.lent_to(request.node) as lab:
        with none_ends_unasked(lab.replicas):
            yield lab
