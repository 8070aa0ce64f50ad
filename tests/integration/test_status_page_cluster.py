"""The status page of real replicas under load, before and after a fail-over; makes the screenshots in docs/."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from ledger_api.client import NotaryClient
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.notary.answers import Notarised, Refused
from replica.status_page.door import StatusDoor
from tests.browser import browser_page, find_browser
from tests.ends import guarded
from tests.faults.load import client_load
from tests.integration.test_workers import commanded

pytestmark = [pytest.mark.thorough, pytest.mark.cluster]

SCREENSHOTS = Path(__file__).parents[2] / "docs" / "screenshots"
# A run that renews the screenshots takes longer, so that the charts have something to show.
RENEWING = bool(os.environ.get("RENEW_SCREENSHOTS"))
SHOWN_MAX_MS = 20_000
NARROW = 380  # a telephone
WIDE = 1_180
SHORT = 300  # a picture is as high as its page, and at least this
LOAD_S = 60.0 if RENEWING else 4.0


async def explored(page: Page, cluster: LocalCluster) -> None:
    """A walk through the ledger explorer after a double spend: by state, attempt, transaction, party and offset."""
    state = f"{os.urandom(32).hex()}:0"
    first, second = cluster.parties
    async with NotaryClient(cluster.endpoint) as client:
        won = await client.submit(first.sign(inputs=[state]))
        lost = await client.submit(second.sign(inputs=[state]))
    assert isinstance(won, Notarised)
    assert isinstance(lost, Refused)
    winner, loser = won.tx_id.hex(), lost.tx_id.hex()
    rows, result = page.locator("#result tbody tr"), page.locator("#result")

    async def search(query: str) -> None:
        await page.fill("#query", query)
        await page.press("#query", "Enter")

    await page.goto(f"{cluster.endpoint}/v1/explorer#{state}")
    await expect(rows).to_have_count(2, timeout=SHOWN_MAX_MS)
    assert ["NOTARISED" in text for text in await rows.all_inner_texts()] == [True, False]
    await rows.nth(1).locator(f'a[title^="{loser}@"]').click()
    await expect(result).to_contain_text("STATE_CONFLICT", timeout=SHOWN_MAX_MS)
    await result.locator(f'a[title="{state}"]').click()
    await result.locator(f'dl a[title="{winner}"]').click()
    await expect(page.locator("#result dd .good")).to_contain_text("valid: this browser", timeout=SHOWN_MAX_MS)
    await expect(result).to_contain_text(f"log offset{won.log_offset}")
    await expect(result).to_contain_text(re.compile(r"notarised\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC"))
    await search(second.name)
    await expect(rows).to_have_count(20, timeout=SHOWN_MAX_MS)
    assert all(second.name in text for text in await rows.all_inner_texts())
    await search("7")
    await expect(rows.first.locator("td").first).to_have_text("7", timeout=SHOWN_MAX_MS)


@asynccontextmanager
async def shown(cluster: LocalCluster, name: str) -> AsyncIterator[str]:
    """The URL of a replica's status page, which counts once."""
    door = StatusDoor(cluster.config.admin_socket(name), 0)
    yield await door.start()
    await door.stop()


async def test_the_page_follows_a_fail_over(
    servers_folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Goal: the page shows the true state. Method: a passive's page in a browser under load; kill the active, look
    again; stop a replica and pause fail-over, and both are alarms."""
    find_browser()
    folder = SCREENSHOTS if RENEWING else tmp_path
    folder.mkdir(exist_ok=True)
    log = request.config.getoption("--log-kind")
    async with guarded(
        LocalCluster(ClusterSettings(folder=servers_folder / "page", api_workers=1, parties=2, log=log))
    ) as cluster:
        load = client_load(cluster, "page", singles=16, batches=2)
        load.start()
        try:
            active = await cluster.wait_for_active()
            watched = (await cluster.passives())[0]
            async with AsyncExitStack() as doors, browser_page(height=SHORT) as (page, complaints):
                await page.goto(await doors.enter_async_context(shown(cluster, watched.name)))
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
                if RENEWING:
                    url = await doors.enter_async_context(shown(cluster, successor.name))
                    await page.goto(url)  # which has latency to show
                await asyncio.sleep(LOAD_S / 4)
                await page.screenshot(path=folder / "status-page.png", full_page=True)
                await page.emulate_media(color_scheme="dark")
                await page.screenshot(path=folder / "status-page-dark.png", full_page=True)
                await page.emulate_media(color_scheme="light")
                await page.set_viewport_size({"width": NARROW, "height": SHORT})
                await expect(page.locator("#replicas tr")).to_have_count(len(cluster.replicas))
                assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW
                await page.screenshot(path=folder / "status-page-narrow.png", full_page=True)
                await page.set_viewport_size({"width": WIDE, "height": SHORT})
                await cluster.replicas[active.name].stop()
                assert await commanded(cluster, "pause", "a new switch in the rack") == 0
                for alarm in ("Fail-over is paused", f"{active.name} does not answer"):
                    await expect(page.locator("#alarms")).to_contain_text(alarm, timeout=SHOWN_MAX_MS)
                await page.screenshot(path=folder / "status-page-alarms.png", full_page=True)
                await explored(page, cluster)
                assert complaints == []
        finally:
            await load.stop()
    assert (folder / "status-page.png").stat().st_size > 20_000
