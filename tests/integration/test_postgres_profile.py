"""One Postgres as lock, log and store, with a synchronous standby: what a promotion leaves."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from ledger_api.client.answers import Notarised
from replica.checker.history import HistoryWriter
from replica.local.cluster import STANDBY_NAME, ClusterSettings, LocalCluster, remove_cluster
from replica.local.recording import RecordingClient
from replica.log.open import open_log
from replica.notary.errors import LogUnavailable
from tests.integration.test_cluster import World

pytestmark = pytest.mark.cluster

SILENT_S = 4.0  # how long to look for an active that must not be there


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path that other accounts may enter."""
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        Path(name).chmod(0o755)
        yield Path(name) / "cluster"


@pytest.fixture
async def world(folder: Path) -> AsyncIterator[World]:
    """A cluster without a broker, whose database has a synchronous standby."""
    further = {"election": {"hold_down_s": 0.0}}
    settings = ClusterSettings(
        folder=folder, api_workers=1, parties=2, log="postgres", database_standby=True, further=further
    )
    async with LocalCluster(settings) as cluster:
        path = folder / "history.jsonl"
        with path.open("wb") as history:
            async with RecordingClient(cluster.endpoint, HistoryWriter(history), "test") as client:
                yield World(cluster, client, path, history)
    await remove_cluster(folder)


async def test_after_a_promotion_nobody_serves_without_a_standby_and_then_nothing_is_lost(world: World) -> None:
    """Goal: a lost primary costs no answer, and no record is read that only one server has.

    Method: notarise; crash the primary, promote its standby. No replica serves, because no standby has the log. The
    crashed server comes back as a standby: a replica serves, and every answer is checked against the log.
    """
    cluster, standby = world.cluster, world.cluster.postgres_standby
    assert standby is not None
    assert cluster.config.log.settings.for_development is False
    for _ in range(5):
        await world.notarise_one()
    crashed = cluster.postgres
    await crashed.stop(immediate=True)
    await standby.promote()
    log = open_log(cluster.config.log.settings)
    try:
        assert await log.agreed_end_offset() > 5
        with pytest.raises(LogUnavailable, match="standbys lack"):
            await log.end_offset()
    finally:
        await log.close()
    await asyncio.sleep(SILENT_S)
    assert await cluster.active() is None

    await crashed.remove()
    await crashed.start_standby_of(standby, STANDBY_NAME)
    await standby.require_standby(STANDBY_NAME)
    await cluster.wait_for_active(timeout_s=120.0)
    await world.notarise_one()
    for tx_id, log_offset in world.notarised.items():
        found = await world.client.look_up(tx_id)
        assert isinstance(found, Notarised)
        assert found.log_offset == log_offset
    await world.check()
