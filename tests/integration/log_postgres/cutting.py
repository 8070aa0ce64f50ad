"""A TCP proxy that passes a number of bytes of an exchange and then cuts the connection, or holds it in silence."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from replica.log.raft.links import close_server


@dataclass
class Allowance:
    """What may pass from now on, in both directions. None: whatever comes."""

    to_server: int | None = None
    to_client: int | None = None
    freeze: bool = False  # instead of a cut


class CuttingProxy:
    """Listens on a free port of 127.0.0.1. A connection passes `allowance` until it is armed with another."""

    def __init__(self, host: str, port: int) -> None:
        self.allowance = Allowance()
        self._target = (host, port)
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0
        self.links: list[Link] = []

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._take, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await close_server(self._server)
        for link in self.links:
            link.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(*self._target)
        link = Link(writer, far_writer)
        link.arm(self.allowance)
        self.links.append(link)
        with suppress(ConnectionError):
            await asyncio.gather(link.pump(reader, far_writer, True), link.pump(far_reader, writer, False))


class Link:
    """One connection through the proxy, and how many bytes it passed since it was armed."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self._ends = (near, far)
        self._allowance = Allowance()
        self.to_server = self.to_client = 0

    def arm(self, allowance: Allowance) -> None:
        """Count from here."""
        self._allowance = allowance
        self.to_server = self.to_client = 0

    def abort(self) -> None:
        """End both sides."""
        for end in self._ends:
            end.transport.abort()

    async def pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, to_server: bool) -> None:
        """One direction, until its allowance is used up."""
        while data := await source.read(65_536):
            passed = self.to_server if to_server else self.to_client
            limit = self._allowance.to_server if to_server else self._allowance.to_client
            part = data if limit is None else data[: max(0, limit - passed)]
            if to_server:
                self.to_server += len(part)
            else:
                self.to_client += len(part)
            sink.write(part)
            await sink.drain()
            if len(part) < len(data):
                if self._allowance.freeze:
                    await asyncio.Event().wait()
                self.abort()
                return
        self.abort()
