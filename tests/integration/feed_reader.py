"""An application that follows completions over HTTP, as simple as one may be: it keeps an offset, and comes back."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from http import HTTPStatus

import aiohttp
import msgspec

PAUSE_S = 0.05
_pages = msgspec.json.Decoder(dict[str, msgspec.Raw])


class HttpFollower:
    """Follows through the balanced endpoint from `start` until `stop`; `lines` is what it received, byte by byte."""

    def __init__(self, endpoint: str) -> None:
        self.lines: list[bytes] = []
        self.offset = 0
        self.streams = 0
        self._endpoint = endpoint
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=15.0)) as session:
            while True:
                with suppress(aiohttp.ClientError, TimeoutError, OSError):  # the same case as an end with a reason
                    await self._follow(session)
                await asyncio.sleep(PAUSE_S)

    async def _follow(self, session: aiohttp.ClientSession) -> None:
        async with session.get(f"{self._endpoint}/v1/completions?follow=true&after={self.offset}") as response:
            if response.status != HTTPStatus.OK:
                return
            self.streams += 1
            async for line in response.content:
                if not line.endswith(b"\n"):
                    return  # the connection broke in the middle of a line: it got no reason
                document = json.loads(line)
                if document["kind"] == "end":
                    return
                self.offset = document["offset"]
                if document["kind"] == "completion":
                    self.lines.append(line.rstrip(b"\n"))


async def read_all(endpoint: str, path: str = "/v1/completions?limit=1000") -> list[bytes]:
    """Every completion by pages, byte by byte."""
    found: list[bytes] = []
    after, end = 0, 1
    async with aiohttp.ClientSession() as session:
        while after < end:
            async with session.get(f"{endpoint}{path}&after={after}") as response:
                assert response.status == 200, await response.read()
                page = _pages.decode(await response.read())
            found += [bytes(raw) for raw in msgspec.json.decode(page["completions"], type=list[msgspec.Raw])]
            after, end = int(bytes(page["next_after"])), int(bytes(page["ledger_end"]))
    return found
