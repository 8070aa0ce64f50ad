"""The status page of real replicas under load, before and after a fail-over; makes the screenshots in docs/."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
from playwright.async_api import expect

from replica.local.cluster import ClusterSettings, LocalCluster
from tests.browser import browser_page, find_browser
from tests.ends import guarded
from tests.faults.load import client_load

pytestmark = pytest.mark.cluster

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "screenshots"
# A run that renews the screenshots takes longer, so that the charts have something to show.
RENEWING = bool(os.environ.get("RENEW_SCREENSHOTS"))
LOAD_S = 60.0 if RENEWING else 4.0


async def test_the_page_follows_a_fail_over(
    servers_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Goal: the page shows the true state. Method: a passive's page in a browser under load; kill the active, look
    again."""
    find_browser()
    folder = SCREENSHOTS if RENEWING else tmp_path
    folder.mkdir(exist_ok=True)
    log = request.config.getoption("--log-kind")
    async with guarded(LocalCluster(ClusterSettings(folder=servers_folder / "page", parties=2, log=log))) as cluster:
        load = client_load(cluster, "page", singles=16, batches=2)
        load.start()
        try:
            active = await cluster.wait_for_active()
            watched = (await cluster.passives())[0]
            async with browser_page(height=860) as (page, complaints):
                await page.goto(f"{cluster.config.admin_url(watched.name)}/")
                state = page.locator("#state")
                await expect(state).to_have_text(f"active: {active.name}", timeout=20_000)
                await asyncio.sleep(LOAD_S)
                throughput = await page.locator("svg").first.get_attribute("aria-label")
                assert throughput is not None
                assert "now 0.0/s" not in throughput
                active.kill_group()
                successor = await cluster.wait_for_active(other_than=active.name)
                await expect(state).to_have_text(f"active: {successor.name}", timeout=20_000)
                # the history is asked again after a few seconds: the new epoch has a line, and the old one an end
                await expect(page.locator("#epochs tr:nth-child(2) td:nth-child(4)")).not_to_be_empty(timeout=20_000)
                await asyncio.sleep(LOAD_S / 4)
                await page.screenshot(path=folder / "status-page.png", full_page=True)
                await page.emulate_media(color_scheme="dark")
                await page.screenshot(path=folder / "status-page-dark.png", full_page=True)
                assert complaints == []
        finally:
            await load.stop()
    assert (folder / "status-page.png").stat().st_size > 20_000
