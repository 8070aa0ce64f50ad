"""`/v1/docs` in a real browser: each call can be tried, with an example, and nothing is loaded from elsewhere."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from playwright.async_api import expect

from tests.browser import browser_page
from tests.worlds.api_world import ApiWorld, StubParticipant

ROOT = Path(__file__).parents[2]
SCREENSHOTS = ROOT / "docs" / "screenshots"
RENEWING = bool(os.environ.get("RENEW_SCREENSHOTS"))

WITHOUT_FORM = {  # pages, and the WebSocket
    *("/v1/docs", "/v1/docs.js", "/v1/explorer", "/v1/explorer.css", "/v1/explorer.js", "/v1/submissions/stream"),
}
FORMS = """[...document.querySelectorAll("form[data-path]")].map(form => ({
  path: form.dataset.path, method: form.dataset.method, body: form.querySelector("textarea")?.value ?? null,
  parts: [...form.querySelectorAll("input[data-in=path]")].map(input => input.value)}))"""


async def test_each_call_can_be_tried_on_the_page(tmp_path: Path) -> None:
    """Goal: a developer sees an answer without a program. Method: try a submission with its example, a look-up that
    finds nothing, a stream, and a call with a token; the browser asks this server alone, and complains of nothing."""
    participant = StubParticipant()
    async with ApiWorld(participant).serve() as world, browser_page() as (page, complaints):
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await page.goto(f"{world.endpoint}/v1/docs")

        async def shown(operation: str, text: str | re.Pattern[str], **fields: str) -> None:
            part = page.locator(f"#{operation}")
            if await part.get_attribute("open") is None:
                await part.locator("summary").click()
            for name, value in fields.items():
                await part.locator(f"input[name={name}]").fill(value)
            await part.locator("button").click()
            await expect(part.locator("pre")).to_contain_text(text, timeout=20_000)

        await shown("get_notary", '"notary_key"')
        await shown("post_submissions", '"code": "NOTARISED"')
        assert len(participant.submitted) == 1
        await page.locator("#post_submissions").scroll_into_view_if_needed()
        await page.screenshot(path=(SCREENSHOTS if RENEWING else tmp_path) / "api-docs.png")
        await shown("get_transactions_tx_id", '"code": "TX_NOT_FOUND"')
        await shown("get_completions", "200 OK", limit="1")
        await page.locator("#token").fill("no.token")
        await shown("get_ledger_end", '"ledger_end"')
        assert asked and all(url.startswith(world.endpoint) for url in asked)
        assert [text for text in complaints if "404" not in text] == []


async def test_each_call_that_a_browser_can_make_has_a_form_with_an_example(tmp_path: Path) -> None:
    """Goal: no empty field that a reader must guess. Method: the document's calls beside the page's forms, which have
    a value for each part of the path, and a body where one is wanted."""
    async with ApiWorld(StubParticipant()).serve() as world, browser_page() as (page, _):
        answer = await page.goto(f"{world.endpoint}/v1/openapi.json")
        assert answer is not None
        calls = {
            (path, method): operation
            for path, methods in (await answer.json())["paths"].items()
            for method, operation in methods.items()
        }
        await page.goto(f"{world.endpoint}/v1/docs")
        forms = {(form["path"], form["method"]): form for form in await page.evaluate(FORMS)}
        assert {path for path, _ in set(calls) - set(forms)} == WITHOUT_FORM
        for call, form in forms.items():
            assert all(form["parts"]), call
            assert "requestBody" not in calls[call] or json.loads(form["body"]), call


def test_the_pages_example_is_that_of_the_documentation() -> None:
    """Goal: one example, which is tested. Method: compare it with the first request of docs/api.md."""
    printed = re.search(
        r"POST /v1/submissions HTTP/1.1\n.*?\n\n(.*?)```", (ROOT / "docs/api.md").read_text(), re.DOTALL
    )
    assert printed is not None
    assert json.loads((ROOT / "ledger_api/server/example.json").read_text()) == json.loads(printed[1])
