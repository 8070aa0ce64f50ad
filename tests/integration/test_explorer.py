"""The ledger explorer in a real browser, over a real cluster; makes its screenshots in docs/."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from ledger_api.client import NotaryClient
from replica.local.cluster import ClusterSettings, LocalCluster
from replica.notary.answers import Notarised
from tests.browser import browser_page, find_browser
from tests.ends import guarded

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module")]
SCREENSHOTS = Path(__file__).parents[2] / "docs" / "screenshots"
RENEWING = bool(os.environ.get("RENEW_SCREENSHOTS"))
SHOWN_MAX_MS = 20_000
NARROW = 380  # a telephone


@dataclass
class Ledger:
    """A cluster, and what was notarised on it: a state, its winner, who came too late, and a party's name."""

    cluster: LocalCluster
    state: str
    winner: str
    loser: str
    party: str

    @property
    def url(self) -> str:
        return f"{self.cluster.endpoint}/v1/explorer"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ledger(servers_folder: Path) -> AsyncIterator[Ledger]:
    """One double spend among some thirty transactions of two parties."""
    find_browser()
    async with guarded(LocalCluster(ClusterSettings(folder=servers_folder / "explorer", parties=2))) as cluster:
        await cluster.wait_for_active()
        one, two = cluster.parties
        state = f"{os.urandom(32).hex()}:0"
        first, second = one.sign(inputs=[state]), two.sign(inputs=[state])
        async with NotaryClient(cluster.endpoint) as client:
            assert isinstance(await client.submit(first), Notarised)
            assert not isinstance(await client.submit(second), Notarised)
            for number in range(30):
                party = (one, two)[number % 2]
                assert isinstance(await client.submit(party.sign(inputs=[f"{os.urandom(32).hex()}:0"])), Notarised)
        await asyncio.sleep(1.0)  # published
        ids = [submission.request.tx_id.hex() for submission in (first, second)]
        yield Ledger(cluster, state, ids[0], ids[1], two.name)


async def search(page: Page, query: str) -> None:
    await page.fill("#query", query)
    await page.press("#query", "Enter")


async def test_a_state_leads_to_its_winner_and_to_those_it_beat(ledger: Ledger, tmp_path: Path) -> None:
    """Goal: who consumed what and when, and whom it refused. Method: search the state, follow the winner, verify."""
    folder = SCREENSHOTS if RENEWING else tmp_path
    async with browser_page() as (page, complaints):
        await page.goto(ledger.url)
        await search(page, ledger.state)
        rows = page.locator("#result tbody tr")
        await expect(rows).to_have_count(2, timeout=SHOWN_MAX_MS)
        texts = await rows.all_inner_texts()
        assert ["NOTARISED" in texts[0], "STATE_CONFLICT" in texts[1]] == [True, True]
        assert await rows.nth(1).locator(f'a[title="{ledger.state}"]').count() == 1
        await page.screenshot(path=folder / "ledger-explorer.png", full_page=True)
        await page.locator(f'#result dl a[title="{ledger.winner}"]').click()
        verdict = page.locator("#result dd .good")
        await expect(verdict).to_contain_text("valid: this browser checked", timeout=SHOWN_MAX_MS)
        await page.screenshot(path=folder / "ledger-explorer-receipt.png", full_page=True)
        assert complaints == []


async def test_a_receipt_that_was_changed_is_called_so(ledger: Ledger) -> None:
    """Goal: the verification is one. Method: one bit of the signature, then of the content, changed on the way."""
    async with browser_page() as (page, _):
        for field, found in (("signature", "its signature is wrong"), ("content_digest", "about another transaction")):

            async def changed(route, field=field):  # type: ignore[no-untyped-def]
                answer = await route.fetch()
                document = await answer.json()
                document[field] = f"{int(document[field][:2], 16) ^ 1:02x}{document[field][2:]}"
                await route.fulfill(response=answer, json=document)

            await page.route("**/receipt", changed)
            await page.goto(f"{ledger.url}#{ledger.winner}")
            await page.reload()
            await expect(page.locator("#result dd .bad")).to_contain_text(found, timeout=SHOWN_MAX_MS)
            await page.unroute("**/receipt")


async def test_pages_of_a_party_and_of_offsets(ledger: Ledger) -> None:
    """Goal: nothing is loaded that nobody asked for. Method: a party's completions, then offsets, page by page."""
    async with browser_page() as (page, complaints):
        await page.goto(ledger.url)
        rows, more = page.locator("#result tbody tr"), page.locator("#result button")
        await expect(rows).to_have_count(20, timeout=SHOWN_MAX_MS)
        await search(page, ledger.party)
        await expect(rows).to_have_count(16, timeout=SHOWN_MAX_MS)
        assert all(ledger.party in text for text in await rows.all_inner_texts())
        await search(page, "3")
        await expect(rows).to_have_count(20, timeout=SHOWN_MAX_MS)
        assert (await rows.first.inner_text()).split()[0] == "3"
        await more.click()
        await expect(rows).to_have_count(30, timeout=SHOWN_MAX_MS)
        await expect(more).to_be_hidden()
        await search(page, "f" * 64)
        await expect(page.locator("#problem")).to_contain_text("TX_NOT_FOUND", timeout=SHOWN_MAX_MS)
        assert [text for text in complaints if "404" not in text] == []


async def test_a_telephone_shows_all_of_it(ledger: Ledger, tmp_path: Path) -> None:
    """Goal: no sideways scrolling. Method: a narrow window; the page is as wide as it."""
    folder = SCREENSHOTS if RENEWING else tmp_path
    async with browser_page(NARROW, 800) as (page, _):
        await page.goto(f"{ledger.url}#{ledger.state}")
        await expect(page.locator("#result tbody tr")).to_have_count(2, timeout=SHOWN_MAX_MS)
        assert await page.evaluate("document.documentElement.scrollWidth") <= NARROW
        await page.screenshot(path=folder / "ledger-explorer-narrow.png", full_page=True)
