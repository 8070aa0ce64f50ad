"""A client of a log node: one connection, calls one after the other or together."""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from ha.raft.messages import Entry, NodeId, TxId
from replica.log.raft import wire
from replica.log.raft.links import give_up_on_silence
from replica.log.raft.notes import Seal
from replica.log.raft.settings import split_address
from replica.log.raft.wire import (
    Answer,
    Append,
    Appended,
    AppendedHere,
    AskWords,
    Change,
    Commit,
    CommitTold,
    End,
    Ends,
    Entries,
    Failed,
    FindSealed,
    FoundSealed,
    FrameRefused,
    Frames,
    Hello,
    KindUnknown,
    Lifeline,
    Nominate,
    Nominated,
    Place,
    Placed,
    Read,
    ReadSealed,
    Refusal,
    Say,
    SealedBytes,
    Status,
    Tied,
    Told,
    Tx,
    TxTold,
    Watch,
    Watched,
    WordsTold,
    encode_frame,
)
from replica.notary.errors import FormatUnknown, LogUnavailable, NotaryError
from replica.notary.tasks import cancelled
from replica.notary.words import NewWord, Word

ResultT = TypeVar("ResultT")
AnswerT = TypeVar(
    "AnswerT",
    Appended,
    Entries,
    Told,
    Ends,
    Placed,
    Nominated,
    TxTold,
    CommitTold,
    FoundSealed,
    SealedBytes,
    Tied,
    Watched,
    WordsTold,
)
_CHUNK_BYTES = 256 * 1024
_SILENCE_MAX_S = 10.0  # a machine that acknowledges nothing for this long is gone


class CallFailed(Exception):
    """The node answered that the call has no effect, and never will have one."""

    def __init__(self, answer: Failed) -> None:
        super().__init__(f"{answer.code}: {answer.detail}")
        self.code = answer.code
        self.leader_id = answer.leader_id


class LogClient:
    """Calls to one node. All raise LogUnavailable when the connection ends: then the outcome is unknown."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, frames: Frames) -> None:
        self._reader, self._writer, self._frames = reader, writer, frames
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._early: dict[int, Callable[[AppendedHere], None]] = {}
        self._is_kept = False
        self._reading = asyncio.create_task(self._read_for_ever(), name="log client")
        self.node_id: NodeId = ""
        self.log_id = ""  # that the node named; "": it had none yet, or is of an older release

    @classmethod
    async def connect(
        cls,
        address: str,
        group: str,
        tls: ssl.SSLContext | None = None,
        *,
        core_of: str = "",
        answer_max_s: float = 5.0,
        frame_max_bytes: int = 2**28,
    ) -> LogClient:
        """Connect and greet. `core_of`: the replica whose core connects. Raises LogUnavailable."""
        host, port = split_address(address)
        frames = Frames(wire.HELLO_MAX_BYTES)
        try:
            async with asyncio.timeout(answer_max_s):
                reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=_CHUNK_BYTES)
                try:
                    give_up_on_silence(writer.transport, _SILENCE_MAX_S)
                    if writer.is_closing():
                        raise LogUnavailable(f"{address}: the connection has ended")
                    writer.write(encode_frame(Hello(wire.PROTOCOL, group, "client", core_of)))
                    hello = await _greeted(reader, frames)
                except BaseException:  # a node refused, or was silent: nothing else would close it
                    writer.transport.abort()
                    raise
        except (OSError, TimeoutError, FrameRefused) as error:
            raise LogUnavailable(f"{address}: {str(error) or 'no answer in time'}") from None
        frames.max_bytes = frame_max_bytes
        client = cls(reader, writer, frames)
        client.node_id, client.log_id = hello.node_id, hello.log_id
        return client

    @property
    def has_ended(self) -> bool:
        """Whether the connection is gone; uvloop raises RuntimeError for what is written to one that is."""
        return self._reading.done() or self._writer.is_closing()

    async def append(
        self, bodies: Sequence[bytes], on_appended: Callable[[AppendedHere], None] | None = None
    ) -> Appended:
        """Append, and wait until all of it is committed. Raises CallFailed if it never will be.

        `on_appended` is called as soon as the leader's log has it; not by a node of an older release.
        """
        call = Append(next(self._numbers), tuple(bodies), on_appended is not None)
        if on_appended is not None:
            self._early[call.call] = on_appended
        try:
            return await self._call(call, Appended)
        finally:
            self._early.pop(call.call, None)

    async def read(self, first_idx: int, last_idx: int = 0, *, wait_ms: int = 0) -> tuple[list[Entry], int]:
        """Committed entries of the node's own disk, as many as fit, and the end of what it has of them. Raises
        FormatUnknown for entries of a kind that only a newer release knows.

        Where there are none from `first_idx` on, the node waits for some, but not longer than `wait_ms`.
        """
        answer = await self._call(Read(next(self._numbers), first_idx, last_idx, wait_ms), Entries)
        return list(answer.entries), answer.commit_idx

    async def end(self) -> Ends:
        """All that was committed before the call is at or below this index; a majority confirmed it. Raises
        CallFailed."""
        return await self._call(End(next(self._numbers)), Ends)

    async def say(self, word: NewWord) -> dict[str, Word]:
        """What is in force under its name once it is committed, whether or not this word counted. Raises CallFailed."""
        return (await self._call(Say(next(self._numbers), word), WordsTold)).words

    async def words(self, prefix: str) -> dict[str, Word]:
        """The words in force under names that begin so, by name; a majority confirmed it. Raises CallFailed."""
        return (await self._call(AskWords(next(self._numbers), prefix), WordsTold)).words

    async def place(self, offset: int) -> Placed:
        """The index of the record with this offset, and the number of records."""
        return await self._call(Place(next(self._numbers), offset), Placed)

    async def status(self) -> dict[str, Any]:
        """The node's state."""
        return (await self._call(Status(next(self._numbers)), Told)).details

    async def change(self, nodes: Sequence[NodeId], instead_of: Sequence[NodeId] = ()) -> Appended:
        """Make these the members, and wait for the commit. Raises CallFailed, also if the members changed meanwhile."""
        return await self._call(Change(next(self._numbers), tuple(nodes), tuple(instead_of)), Appended)

    async def tx(self, at: TxId) -> TxTold:
        """What became of an entry, as far as this node knows."""
        return await self._call(Tx(next(self._numbers), at.view, at.idx), TxTold)

    async def commit(self, since_view: int = 0) -> CommitTold:
        """The newest entry that this node knows as committed, and where views from this one on begin; 0: no views."""
        return await self._call(Commit(next(self._numbers), since_view), CommitTold)

    async def find_sealed(self, idx: int) -> Seal | None:
        """The seal of the node's sealed segment that has this entry; None: it has none."""
        return (await self._call(FindSealed(next(self._numbers), idx), FoundSealed)).seal

    async def read_sealed(self, first_idx: int, at: int, size: int) -> bytes:
        """Bytes of a sealed segment's file; fewer where it ends, or is gone."""
        return (await self._call(ReadSealed(next(self._numbers), first_idx, at, size), SealedBytes)).data

    async def nominate(self, name: str) -> None:
        """Ask the leader, which this node must be, to hand over to a member. Raises CallFailed."""
        await self._call(Nominate(next(self._numbers), name), Nominated)

    async def tie(self, activation_id: bytes) -> None:
        """Make this connection the lifeline of an activation, see lives.py. Raises CallFailed on another machine."""
        await self._call(Lifeline(next(self._numbers), activation_id), Tied)

    def keep_open(self) -> int:
        """A descriptor that keeps the connection open, whatever becomes of this client, until it is closed or the
        process ends. No other program inherits it.
        """
        self._is_kept = True
        return os.dup(self._writer.get_extra_info("socket").fileno())

    async def watch(self, activation_id: bytes, *, wait_ms: int) -> bool:
        """Whether the process that leads with this activation has ended; waits for that, but not longer."""
        return (await self._call(Watch(next(self._numbers), activation_id, wait_ms), Watched)).ended

    async def ended(self) -> None:
        """Return when the connection is gone."""
        await asyncio.wait({self._reading})

    async def close(self) -> None:
        """End the connection. May be repeated."""
        self._hang_up()
        await cancelled(self._reading)

    def _hang_up(self) -> None:
        """A farewell over TLS would look to the node like this process's end, which a kept connection must not show."""
        if self._is_kept:
            self._writer.transport.abort()
        else:
            self._writer.close()

    async def _call(self, call: wire.Call, kind: type[AnswerT]) -> AnswerT:
        if self.has_ended:
            raise LogUnavailable("the connection has ended")
        future = self._open[call.call] = asyncio.get_running_loop().create_future()
        try:
            self._writer.write(encode_frame(call))
            answer = await future
        finally:
            self._open.pop(call.call, None)
        if isinstance(answer, Failed):
            raise CallFailed(answer)
        if not isinstance(answer, kind):
            raise LogUnavailable(f"an answer of another kind: {type(answer).__name__}")
        return answer

    async def _read_for_ever(self) -> None:
        why: NotaryError = LogUnavailable("the node closed the connection")
        try:
            while data := await self._reader.read(_CHUNK_BYTES):
                for frame in self._frames.feed(data):
                    answer = wire.decode(wire.answers, frame)
                    if isinstance(answer, AppendedHere):
                        if (on_appended := self._early.pop(answer.call, None)) is not None:
                            on_appended(answer)
                        continue
                    future = self._open.get(answer.call)
                    if future is not None and not future.done():
                        future.set_result(answer)
        except KindUnknown as error:  # to ask again, or another node, would not help
            why = FormatUnknown(str(error))
        except (OSError, FrameRefused) as error:
            why = LogUnavailable(str(error))
        finally:
            self._hang_up()
            for future in self._open.values():
                if not future.done():
                    future.set_exception(why)


async def _greeted(reader: asyncio.StreamReader, frames: Frames) -> Hello:
    while data := await reader.read(_CHUNK_BYTES):
        for frame in frames.feed(data):
            hello = wire.decode(wire.greeting, frame)
            if isinstance(hello, Refusal):
                raise LogUnavailable(f"the log node refused: {hello.why}")
            if hello.role != "node":  # a connection to a port without a listener may connect to itself
                raise LogUnavailable("whoever answers is no log node")
            return cast(Hello, hello)
    raise LogUnavailable("the log node closed the connection")


async def within(call: Coroutine[Any, Any, ResultT], answer_max_s: float) -> ResultT:
    """The answer to a call. Raises LogUnavailable when none comes in time."""
    try:
        async with asyncio.timeout(answer_max_s):
            return await call
    except TimeoutError:
        raise LogUnavailable(f"a log node has not answered for {answer_max_s:g} s") from None
