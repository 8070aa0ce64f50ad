"""The request log in another process's memory: its reader, its writer, and the operations of tools."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from replica.log.admin import LogSurvey, Stretch
from replica.log.in_memory.settings import CLOSE_MAX_S, MemoryLogSettings
from replica.log.in_memory.wire import Answer, Hello, Question, Wanted, frame, read_frame
from replica.log.interface import LogRecords, RoundTrip
from replica.notary.errors import LogRefused, LogUnavailable, NotaryError
from replica.notary.records import check_sizes

MIB = 1 << 20
_WAIT_MAX_S = 1.0  # of one request for records: a server notices only after it that a client has gone


class Connection:
    """One connection, one question at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.log_id = ""

    @classmethod
    async def open(cls, settings: MemoryLogSettings, hello: Hello) -> Connection:
        """Connect. Raises LogUnavailable, and the server's error when it refuses the Hello."""
        try:
            async with asyncio.timeout(settings.answer_max_s):
                made = cls(*await asyncio.open_unix_connection(settings.socket_path))
        except (OSError, TimeoutError) as error:
            raise LogUnavailable(f"the log in memory, {settings.socket_path}: {error or 'no answer in time'}") from None
        try:
            made.log_id = await made.ask(hello, settings.answer_max_s)
        except BaseException:
            made.close()
            raise
        return made

    async def ask(self, question: object, max_s: float) -> Any:
        """The result. Raises the server's error, and LogUnavailable when the connection ends or is silent."""
        self.writer.write(frame(question))
        try:
            async with asyncio.timeout(max_s):
                answer = await read_frame(self.reader, Answer)
        except TimeoutError:
            raise LogUnavailable(f"the log in memory gave no answer within {max_s:g} s") from None
        return answer.take()

    def close(self) -> None:
        """End the connection; a question in progress fails. May be repeated."""
        self.writer.close()


class RemoteMemoryLog:
    """A `RequestLog` in the memory of the process that listens on `socket_path`. Connects when first asked."""

    def __init__(self, settings: MemoryLogSettings) -> None:
        self._settings = settings
        self._log_id = ""
        self._asker: Connection | None = None
        self._turn = asyncio.Lock()
        self._open: set[MemoryLogReader | MemoryLogWriter] = set()

    @property
    def answer_times(self) -> Mapping[str, RoundTrip]:
        """See `RequestLog.answer_times`: nothing is measured."""
        return {}

    async def check(self) -> str:
        """See `RequestLog.check`."""
        self._log_id = str(await self._ask(Question("check")))
        return self._log_id

    async def hazards(self) -> Sequence[str]:
        """See `RequestLog.hazards`."""
        return list(await self._ask(Question("hazards")))

    async def end_offset(self) -> int:
        """See `RequestLog.end_offset`."""
        return int(await self._ask(Question("end")))

    async def agreed_end_offset(self) -> int:
        """See `RequestLog.agreed_end_offset`."""
        return int(await self._ask(Question("agreed_end")))

    async def open_reader(self, start_offset: int) -> MemoryLogReader:
        """See `RequestLog.open_reader`."""
        connection = await Connection.open(self._settings, Hello("read", self._log_id, start_offset))
        self._log_id = self._log_id or connection.log_id
        reader = MemoryLogReader(connection, self._settings, self._open.discard)
        self._open.add(reader)
        return reader

    async def open_writer(self) -> MemoryLogWriter:
        """See `RequestLog.open_writer`."""
        connection = await Connection.open(self._settings, Hello("append", self._log_id))
        writer = MemoryLogWriter(connection, self._settings, self._open.discard)
        self._open.add(writer)
        return writer

    async def close(self) -> None:
        """See `RequestLog.close`."""
        await asyncio.gather(*[handle.close() for handle in self._open])
        if self._asker is not None:
            self._asker.close()
            self._asker = None

    async def _ask(self, question: Question) -> Any:
        """Ask on the connection for questions. A connection whose answer did not come is not used again."""
        async with self._turn:
            asker, self._asker = self._asker, None
            if asker is None:
                asker = await Connection.open(self._settings, Hello("ask", self._log_id))
                self._log_id = self._log_id or asker.log_id
            try:
                found = await asker.ask(question, self._settings.answer_max_s)
            except LogRefused:
                self._asker = asker
                raise
            except BaseException:
                asker.close()
                raise
            self._asker = asker
            return found


class MemoryLogReader:
    """A `LogReader` with a connection of its own. Once it has failed it stays so."""

    def __init__(
        self, connection: Connection, settings: MemoryLogSettings, on_close: Callable[[MemoryLogReader], None]
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._on_close = on_close
        self._fetching: asyncio.Task[None] | None = None
        self._ahead: LogRecords = []
        self._failure: NotaryError | None = None
        self._closed = False

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        """See `LogReader.read`. The next read returns what a cancelled read has fetched."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            if self._closed:
                raise LogUnavailable("the reader is closed")
            if self._ahead:
                records, self._ahead = self._ahead[:max_records], self._ahead[max_records:]
                return records
            if self._failure is not None:
                raise self._failure
            left_s = until_s - loop.time()
            if self._fetching is None:
                self._fetching = asyncio.create_task(self._fetch(max_records, min(max(0.0, left_s), _WAIT_MAX_S)))
            await asyncio.wait([self._fetching])  # not awaited itself: that would cancel it with this read
            self._fetching = None
            if left_s <= 0 and not self._ahead and self._failure is None:
                return []

    async def close(self) -> None:
        """See `LogReader.close`."""
        self._closed = True
        self._connection.close()
        if self._fetching is not None:
            await asyncio.wait([self._fetching], timeout=CLOSE_MAX_S)
        self._on_close(self)

    async def _fetch(self, max_records: int, wait_s: float) -> None:
        try:
            found = await self._connection.ask(Wanted(max_records, wait_s), wait_s + self._settings.answer_max_s)
            self._ahead = [(offset, value) for offset, value in found]
        except NotaryError as failure:
            self._failure = failure
            self._connection.close()


class MemoryLogWriter:
    """A `LogWriter` with a connection of its own. When that ends, unanswered records have an unknown outcome."""

    def __init__(
        self, connection: Connection, settings: MemoryLogSettings, on_close: Callable[[MemoryLogWriter], None]
    ) -> None:
        self._connection = connection
        self._settings = settings
        self._on_close = on_close
        self._unanswered: list[tuple[int, int]] = []  # records and bytes of each frame, oldest first
        self._failed_count = 0
        self._over = ""  # why nothing more is accepted
        self._hearing = asyncio.create_task(self._hear())

    @property
    def failed_count(self) -> int:
        """See `LogWriter.failed_count`. Does not count what `close` abandons."""
        return self._failed_count

    @property
    def has_ended(self) -> bool:
        """See `LogWriter.has_ended`."""
        return bool(self._over)

    @property
    def is_connected(self) -> bool:
        """See `LogWriter.is_connected`."""
        return not self._over

    def append(self, value: bytes) -> None:
        """See `LogWriter.append`."""
        self.append_all([value])

    def append_all(self, values: Sequence[bytes]) -> None:
        """See `LogWriter.append_all`: accepts all values, or none."""
        if self._over:
            raise LogUnavailable(self._over)
        check_sizes(values)
        if not values:
            return
        added = len(values), sum(map(len, values))
        count, size = (sum(column) for column in zip(added, *self._unanswered, strict=True))
        if count > self._settings.append_queue_max or size > self._settings.append_queue_max_mib * MIB:
            raise LogUnavailable("the queue of records that the log has not answered is full")
        self._unanswered.append(added)
        self._connection.writer.write(frame(list(values)))

    async def close(self) -> None:
        """See `LogWriter.close`."""
        self._over = self._over or "the writer is closed"
        self._connection.close()
        await asyncio.wait([self._hearing], timeout=CLOSE_MAX_S)
        self._on_close(self)

    async def _hear(self) -> None:
        try:
            while True:
                (await read_frame(self._connection.reader, Answer)).take()
                self._unanswered.pop(0)
        except NotaryError as failure:
            self._connection.close()
            if not self._over:
                self._over = f"the writer has failed: {failure.detail}"
                self._failed_count += sum(count for count, _ in self._unanswered)


class MemoryLogAdmin:
    """A `LogAdmin` of the log in another process's memory."""

    def __init__(self, settings: MemoryLogSettings) -> None:
        self._settings = settings

    async def topic_id(self) -> str:
        """See `LogAdmin.topic_id`."""
        return (await self.survey()).log_id

    async def first_offset(self) -> int:
        """See `LogAdmin.first_offset`."""
        return (await self.survey()).first_offset

    async def end_offset(self) -> int:
        """See `LogAdmin.end_offset`."""
        return (await self.survey()).end_offset

    async def server_count(self) -> int:
        """One process."""
        await self.survey()
        return 1

    async def survey(self) -> LogSurvey:
        """See `LogAdmin.survey`. Nobody deletes the log; it goes with its process."""
        connection = await Connection.open(self._settings, Hello("ask", ""))
        try:
            log_id, first, end = await connection.ask(Question("survey"), self._settings.answer_max_s)
        finally:
            connection.close()
        return LogSurvey(log_id=log_id, first_offset=first, end_offset=end)

    async def create(self) -> str:
        """Return the log's identity. The process made the log when it started."""
        return await self.topic_id()

    def stretch(self, first: int, end: int) -> Iterator[Stretch]:
        """See `LogAdmin.stretch`."""
        with self._blocking() as ask:
            ask(Hello("ask", ""))
            while first < end:
                found: list[tuple[int, bytes]] = ask(Question("stretch", first, end))
                if not found:
                    raise LogRefused(f"the log has no offset {first}")
                times_ms, values = zip(*found, strict=True)
                yield Stretch(first, times_ms, [None] * len(found), values, [None] * len(found))
                first += len(found)

    async def close(self) -> None:
        """Nothing is kept open between two questions."""

    @contextlib.contextmanager
    def _blocking(self) -> Iterator[Callable[[object], Any]]:
        """Asks without an event loop."""
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.settimeout(self._settings.answer_max_s)
                connection.connect(str(self._settings.socket_path))
                stream = connection.makefile("rb")

                def ask(question: object) -> Any:
                    connection.sendall(frame(question))
                    body = stream.read(int.from_bytes(stream.read(4), "big"))
                    return msgspec.msgpack.decode(body, type=Answer).take()

                with stream:
                    yield ask
            except (OSError, msgspec.MsgspecError) as error:
                raise LogUnavailable(f"the log in memory, {self._settings.socket_path}: {error}") from None
