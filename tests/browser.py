"""A headless browser for tests of pages: Debian's Chromium, driven by Playwright. Nothing is downloaded."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from playwright.async_api import Page, async_playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_browser() -> str:
    """The browser's program: $CHROMIUM, else what is installed. Skips the test, loudly, where there is none."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        message = "NOT TESTED: no Chromium on this machine, so no page was looked at; scripts/setup.sh --for-tests"
        warnings.warn(message, stacklevel=2)
        pytest.skip(message)
    return found


@asynccontextmanager
async def browser_page(width: int = 1_180, height: int = 900) -> AsyncIterator[tuple[Page, list[str]]]:
    """A page of a new browser, and what its console and its security policy complained about so far."""
    complaints: list[str] = []
    async with async_playwright() as playwright:
        # No sandbox of its own: tests may run as root, and the page is ours.
        browser = await playwright.chromium.launch(executable_path=find_browser(), args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": width, "height": height})
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        try:
            yield page, complaints
        finally:
            await browser.close()
