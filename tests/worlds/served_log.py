"""A log in memory behind a socket, for jobs that are given a configuration."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from replica.log.in_memory.server import MemoryLogServer, TimedTopic
from replica.log.in_memory.settings import MemoryLogSettings


@contextmanager
def served_log(topic_id: str) -> Iterator[tuple[TimedTopic, MemoryLogSettings]]:
    """The log, to append to, and where it is served, by a thread."""
    loop, server = asyncio.new_event_loop(), MemoryLogServer(topic := TimedTopic(topic_id))
    thread = threading.Thread(target=loop.run_forever)
    with tempfile.TemporaryDirectory(prefix="log-") as folder:  # a short path: a socket's has 107 bytes at most
        settings = MemoryLogSettings(socket_path=Path(folder) / "log.sock")
        loop.run_until_complete(server.start(settings.socket_path))
        thread.start()
        try:
            yield topic, settings
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10.0)
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()
