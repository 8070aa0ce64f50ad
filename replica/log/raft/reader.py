"""A reader of the log over one connection to a node."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from ha.raft.messages import Kind
from replica.log.interface import LogRecords
from replica.log.raft.client import CallFailed, LogClient, within
from replica.notary.errors import LogRefused, LogUnavailable
from replica.notary.tasks import cancelled

WAIT_MAX_S = 1.0  # of one question to a node
_RETURN_S = 1.0  # between two looks for the node beside a replica that reads from another one


class RaftReader:
    """A `LogReader` over one connection to a node.

    Where that is not the node beside the replica, the reader goes over to it as soon as it has as much. A machine that
    falls silent then stops the reading of its own replica only.
    """

    def __init__(self, client: LogClient, next_idx: int, next_offset: int, answer_max_s: float) -> None:
        self._client = client
        self._next_idx = next_idx
        self._next_offset = next_offset
        self._answer_max_s = answer_max_s
        self._read: deque[tuple[int, bytes]] = deque()
        self._failure: LogUnavailable | None = None
        self._own: LogClient | None = None
        self._looking: asyncio.Task[None] | None = None

    def look_for(self, connect: Callable[[], Coroutine[Any, Any, LogClient]]) -> None:
        """Go over to the node beside the replica, which `connect` connects to, once it has what was read here."""
        self._looking = asyncio.create_task(self._look_for(connect), name="log reader's own node")

    async def _look_for(self, connect: Callable[[], Coroutine[Any, Any, LogClient]]) -> None:
        while self._own is None:
            await asyncio.sleep(_RETURN_S)
            with suppress(LogUnavailable, LogRefused, CallFailed):
                self._own = await self._with_as_much(await connect())

    async def _with_as_much(self, client: LogClient) -> LogClient | None:
        """None: the node lags; then the connection is closed."""
        found = None
        try:
            _, commit_idx = await within(client.read(self._next_idx, self._next_idx), self._answer_max_s)
            found = client if commit_idx >= self._next_idx - 1 else None
        finally:
            if found is None:
                await client.close()
        return found

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        """See `LogReader.read`."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while not self._read:
            left_s = max(until_s - loop.time(), 0.0)
            if not await self._fetch(min(left_s, WAIT_MAX_S)) and loop.time() >= until_s:
                break
        return [self._read.popleft() for _ in range(min(max_records, len(self._read)))]

    async def _fetch(self, wait_s: float) -> bool:
        """Ask once; whether there was anything, even if no record."""
        if self._failure is not None:
            raise self._failure
        if self._own is not None and self._own is not self._client:
            await self._client.close()
            self._client = self._own
        try:
            call = self._client.read(self._next_idx, wait_ms=int(wait_s * 1_000))
            entries, _ = await within(call, wait_s + self._answer_max_s)
        except LogUnavailable as error:
            self._failure = self._failure or error
            raise self._failure from None
        for entry in entries:
            if entry.kind is Kind.RAW:
                self._read.append((self._next_offset, entry.body))
                self._next_offset += 1
        self._next_idx += len(entries)
        return bool(entries)

    async def close(self) -> None:
        """See `LogReader.close`."""
        self._failure = LogUnavailable("the reader is closed")
        self._read.clear()
        if self._looking is not None:
            await cancelled(self._looking)
        for client in filter(None, {self._client, self._own}):
            await client.close()
