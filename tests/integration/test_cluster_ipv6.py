"""A whole cluster on IPv6: log nodes, replicas, their links and HAProxy."""

from __future__ import annotations

from pathlib import Path

import pytest

from ledger_api.client.client import NotaryClient
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.local.machine import Machine
from replica.notary.answers import Notarised
from tests.ends import ends_by_design, guarded

pytestmark = [pytest.mark.thorough, pytest.mark.cluster]

ADDRESS = Machine(address="[::1]")


async def test_a_cluster_on_ipv6_serves_and_fails_over(servers_folder: Path) -> None:
    """Goal: an address of either kind is one everywhere. Method: each part on ::1; a submission, the active killed,
    another submission."""
    settings = ClusterSettings(
        folder=servers_folder / "ipv6",
        api_workers=1,
        parties=1,
        log="raft",
        embedded=True,
        haproxy=True,
        machines=dict.fromkeys(("r1", "r2", "r3", "lb"), ADDRESS),
    )
    async with guarded(LocalCluster(settings)) as cluster, NotaryClient(cluster.endpoint) as client:
        assert "[::1]" in cluster.endpoint
        assert isinstance(await client.submit(cluster.parties[0].sign()), Notarised)
        active = await cluster.wait_for_active()
        with ends_by_design(active):
            active.kill_core()
            assert isinstance(await client.submit(cluster.parties[0].sign()), Notarised)
            await cluster.wait_for_active()
