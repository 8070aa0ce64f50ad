"""The status page in a real browser, over an admin listener with sources that the test decides."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest_asyncio
from aiohttp import ClientSession, CookieJar
from playwright.async_api import expect

from replica.operators.admin import AdminListener
from replica.status_page.door import StatusDoor
from replica.status_page.routes import Epoch, StatusPage
from replica.status_page.samples import SAMPLE_S, Reading
from replica.telemetry.counts import LATENCY_BOUNDS_S
from tests.browser import browser_page
from tests.steering import steering_of_nobody

HOSTILE = "<img src=x onerror=document.title='owned'>"
ANSWER_MAX_MS = 10_000


@dataclass
class Source:
    """What a replica would say, and a clock that the test moves."""

    detail: dict[str, Any]
    epochs: list[Epoch] = field(default_factory=list)
    history_fails: bool = False
    now_s: float = 0.0
    notarised: int = 0

    def boottime_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return 1_760_000_000_000_000 + round(self.now_s * 1e6)

    async def sleep_s(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.notarised += 500
        await asyncio.sleep(0 if self.now_s < 120 * SAMPLE_S else 3_600)  # two minutes of samples at once

    def read(self) -> Reading:
        latency = tuple(self.notarised if at == 3 else 0 for at in range(len(LATENCY_BOUNDS_S) + 1))
        outcomes = {"NOTARISED": self.notarised, "STATE_CONFLICT": self.notarised // 100}
        return Reading(self.now_s, self.wall_us(), outcomes, latency, True, 7, 0, 12, 0.25)

    async def history(self) -> list[Epoch]:
        if self.history_fails:
            raise TimeoutError("no answer from the database")
        return self.epochs


@dataclass
class Shown:
    """A page that is served: its URL, and what decides its content."""

    url: str
    source: Source


@pytest_asyncio.fixture
async def shown() -> AsyncIterator[Shown]:
    """An admin listener with the page, and a peer that does not answer."""
    detail = {"replica": "r1", "role": "active", "active": True, "ready": True, "epoch": 7, "applied_offset": 4_321}
    detail |= {"lock_owner": "r1", "lag_records": 0, "in_flight": 12, "reaches_log": True, "version": "0.2.0"}
    source = Source(detail, [Epoch(7, "r1", "2026-11-21T10:00:00Z", None, None), Epoch(6, HOSTILE, "", None, HOSTILE)])
    page = StatusPage(
        name="r1",
        version="0.2.0",
        cluster="gold",
        endpoint="https://notary.example:8080",
        peers={"r2": "http://127.0.0.1:1"},
        clock=source,
        read=source.read,
        detail=lambda: source.detail,
        history=source.history,
    )
    with tempfile.TemporaryDirectory(prefix="page-") as folder:
        path = Path(folder) / "admin.sock"
        listener = AdminListener(steering_of_nobody(), lambda: source.detail, page.routes(), path)
        await listener.start()
        door = StatusDoor(path, 0)
        sampling = asyncio.create_task(page.run())
        yield Shown(await door.start(), source)
        sampling.cancel()
        await door.stop()
        await listener.stop()


async def test_the_page_shows_roles_charts_and_epochs(shown: Shown) -> None:
    """Goal: one look shows who is active, and the load. Method: open it, read what a person reads."""
    async with browser_page() as (page, complaints):
        await page.goto(shown.url)
        await page.wait_for_selector("figure", timeout=ANSWER_MAX_MS)
        assert await page.inner_text("#state") == "active: r1"
        rows = await page.locator("#replicas tr").all_inner_texts()
        assert ["ACTIVE" in rows[0], "4321" in rows[0], "does not answer" in rows[1]] == [True, True, True]
        charts = await page.locator("svg").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")
        assert charts[0] == "Throughput: notarised, refused: now 500/s, 5.0/s, at most 500/s"
        assert charts[1].startswith("Latency: median, 99th percentile: now 7.5 ms, 10.0 ms")
        assert len(charts) == 6
        path = await page.locator("figure path").first.get_attribute("d")
        assert path is not None
        assert path.count("L") > 100
        epochs = await page.inner_text("#epochs")
        assert "7" in epochs
        assert "2026-11-21 10:00:00" in epochs
        assert complaints == []


async def test_the_page_names_notary_lock_endpoint_and_alarms(shown: Shown) -> None:
    """Goal: what an operator asks first is on top. Method: a stranger's lock, a lag, one that is down."""
    shown.source.detail |= {
        "lock_owner": HOSTILE,
        "lag_records": 60_000,
        "failover_paused": True,
        "lock_answer_age_s": 0.2,
    }
    async with browser_page(380, 800) as (page, complaints):
        await page.goto(shown.url)
        await page.wait_for_selector("figure", timeout=ANSWER_MAX_MS)
        assert await page.inner_text("#title") == "Notary gold, replica r1"
        where = await page.inner_text("#where")
        assert where == f"lock: {HOSTILE} · endpoint: https://notary.example:8080 · ledger explorer"
        assert await page.get_attribute("#where a", "href") == "https://notary.example:8080/v1/explorer"
        assert await page.locator("#alarms li").all_inner_texts() == [
            f"The lock is held by {HOSTILE}, which is no replica",
            "No other replica could take over",
            "Fail-over is paused",
            "r1 lags by 60000 records",
            "r2 does not answer",
        ]
        cells = await page.locator("#replicas tr").first.locator("td").all_inner_texts()
        assert cells[6:9] == ["7.5 ms", "10.0 ms", "200 ms"]
        assert await page.evaluate("document.documentElement.scrollWidth") <= 380, "a telephone scrolls sideways"
        ends = "all => all.map(one => one.getBoundingClientRect().right)"
        assert max(await page.locator("td").evaluate_all(ends)) <= 380, "a telephone cuts a cell"
        assert await page.locator("#replicas td").nth(6).get_attribute("data-name") == "median"
        assert complaints == []


async def test_texts_of_the_replica_stay_texts(shown: Shown) -> None:
    """Goal: a name cannot become a program. Method: markup in names; look for the element, the title, the policy."""
    async with browser_page() as (page, complaints):
        await page.goto(shown.url)
        await page.wait_for_selector("#epochs tr", timeout=ANSWER_MAX_MS)
        assert HOSTILE in await page.inner_text("#epochs")
        assert await page.query_selector("#epochs img") is None
        assert "owned" not in await page.title()
        assert complaints == []


async def test_browsers_are_told_what_the_page_may_do(shown: Shown) -> None:
    """Goal: nothing from elsewhere, nothing kept. Method: the headers of everything that the page is made of."""
    address = shown.url.partition("/?token=")[0]
    async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as session:  # of an address without a name
        await (await session.get(shown.url)).read()
        for path in ("/", "/page.js", "/page.css", "/page/data"):
            async with session.get(address + path) as answer:
                assert answer.status == HTTPStatus.OK, path
                policy = answer.headers["Content-Security-Policy"]
                assert answer.headers["Cache-Control"] == "no-store", path
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "http" not in policy


async def test_the_page_says_what_it_does_not_know(shown: Shown) -> None:
    """Goal: no old figure passes for a new one. Method: passive, database silent; then no answer at all."""
    shown.source.detail |= {"active": False, "role": "passive", "ready": True}
    shown.source.history_fails = True
    async with browser_page() as (page, _):
        await page.goto(shown.url)
        await expect(page.locator("#state")).to_have_text("nobody is active", timeout=ANSWER_MAX_MS)
        assert "no answer from the database" in await page.inner_text("#epochs-problem")
        await page.route("**/page/data*", lambda route: route.abort())
        await expect(page.locator("#state")).to_contain_text("has not answered since", timeout=ANSWER_MAX_MS)
        assert await page.get_attribute("#state", "class") == "bad"
