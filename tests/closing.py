"""What asyncio leaves open when it is only asked to end: a killed process' pipes, a closed server's connections.

Warnings are errors (`filterwarnings` in pyproject.toml): whatever a test opens, it closes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

from replica.log.raft.links import close_server

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def ended(process: asyncio.subprocess.Process) -> None:
    """Kill a process unless it has ended, and read what it left: its pipes are closed with their last byte only."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.communicate()


@asynccontextmanager
async def listening(serve: Serve, host: str, port: int = 0) -> AsyncIterator[int]:
    """A server whose connections end with `serve`, or with the block; its port."""
    serving: set[asyncio.Task[None]] = set()

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        task.add_done_callback(serving.discard)
        try:
            with suppress(ConnectionError):
                await serve(reader, writer)
            writer.close()
        except BaseException:
            writer.transport.abort()
            raise

    server = await asyncio.start_server(take, host, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        await close_server(server)
        for task in tuple(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
