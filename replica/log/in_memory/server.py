"""The process that holds the log: `python -m replica.log.in_memory.server SOCKET`. SIGTERM ends it, and the log.

Each connection has a `MemoryLog` of its own, so it makes the same promises.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from replica.log.in_memory.wire import ANSWER_BYTES, Answer, Hello, Question, Wanted, frame, read_frame
from replica.log.interface import LogReader
from replica.log.memory import MemoryLog, MemoryTopic
from replica.log.raft.links import close_server
from replica.notary.errors import LogUnavailable, NotaryError
from replica.notary.tasks import cancelled

STRETCH_RECORDS = 1_000


class TimedTopic(MemoryTopic):
    """A MemoryTopic that records when each record was appended, milliseconds UTC."""

    def __init__(self, topic_id: str) -> None:
        super().__init__(topic_id)
        self.times_ms: list[int] = []

    def store(self, value: bytes) -> None:
        """See `MemoryTopic.store`."""
        self.times_ms.append(time.time_ns() // 1_000_000)
        super().store(value)

    def truncate(self, end_offset: int) -> None:
        """See `MemoryTopic.truncate`."""
        del self.times_ms[end_offset:]
        super().truncate(end_offset)


class MemoryLogServer:
    """Serves one topic on a Unix socket that only this user may open. `stop` may be repeated."""

    def __init__(self, topic: TimedTopic) -> None:
        self._topic = topic
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self, path: Path) -> None:
        """Listen. Raises OSError."""
        await asyncio.to_thread(path.unlink, missing_ok=True)
        before = os.umask(0o077)
        try:
            self._server = await asyncio.start_unix_server(self._accept, path)
        finally:
            os.umask(before)

    async def stop(self) -> None:
        """End every connection."""
        if self._server is not None:
            await close_server(self._server)
            await cancelled(*self._serving)
            self._server = None

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
            task.add_done_callback(self._serving.discard)
        log = MemoryLog(self._topic)
        try:
            await self._serve(log, reader, writer)
        except (LogUnavailable, ConnectionError, asyncio.CancelledError):
            pass  # the client has gone, or the server stops
        finally:
            await log.close()
            writer.close()

    async def _serve(self, log: MemoryLog, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        hello = await read_frame(reader, Hello)
        if hello.log_id:
            log.expect(hello.log_id)
        handle: Any = None
        try:
            if hello.use == "read":
                handle = await log.open_reader(hello.start_offset)
            elif hello.use == "append":
                handle = await log.open_writer()
            answer = Answer(self._topic.topic_id)
        except NotaryError as error:
            answer = Answer.failed(error)
        await _send(writer, answer)
        while True:
            match hello.use:
                case "ask":
                    asked = self._answer(log, await read_frame(reader, Question))
                case "read":
                    asked = _next_records(handle, await read_frame(reader, Wanted))
                case "append":
                    asked = _append(handle, await read_frame(reader, list[bytes]))
            try:
                answer = Answer(await asked)
            except NotaryError as error:
                answer = Answer.failed(error)
            await _send(writer, answer)

    async def _answer(self, log: MemoryLog, question: Question) -> Any:
        match question.about:
            case "check":
                return await log.check()
            case "hazards":
                return list(await log.hazards())
            case "end":
                return await log.end_offset()
            case "agreed_end":
                return await log.agreed_end_offset()
            case "survey":
                return self._topic.topic_id, self._topic.first_offset, self._topic.end_offset
            case "stretch":
                return self._stretch(question.first, min(question.end, question.first + STRETCH_RECORDS))

    def _stretch(self, first: int, end: int) -> list[tuple[int, bytes]]:
        """Time and value of the records from `first` on, as many as fit one answer."""
        found, size = [], 0
        for offset, value in self._topic.records(first, end - first):
            found.append((self._topic.times_ms[offset], value))
            size += len(value)
            if size >= ANSWER_BYTES:
                break
        return found


async def _next_records(reader: LogReader, wanted: Wanted) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    size, wait_s = 0, wanted.wait_s
    while len(found) < wanted.max_records and size < ANSWER_BYTES:
        records = await reader.read(1, wait_s)
        if not records:
            break
        found += records
        size += len(records[0][1])
        wait_s = 0.0  # only records that are there already
    return found


async def _append(writer: Any, values: Sequence[bytes]) -> int:
    writer.append_all(values)
    return len(values)


async def _send(writer: asyncio.StreamWriter, answer: Answer) -> None:
    writer.write(frame(answer))
    await writer.drain()


async def serve(path: Path) -> None:
    """Serve a new log at this path until SIGTERM or SIGINT."""
    server, stop = MemoryLogServer(TimedTopic(f"memory:{uuid.uuid4()}")), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.start(path)
    await stop.wait()
    await server.stop()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
