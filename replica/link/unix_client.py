"""A front end's end of the link.

It collects the calls of one turn of its event loop and sends them as one frame. It detects by the silence that the core
hangs.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import cast

import msgspec

from replica.link.change_signal import ChangeSignal
from replica.link.frames import (
    PROTOCOL,
    Answers,
    AskLog,
    FrameProtocol,
    FromCore,
    Hello,
    LinkBroken,
    LookUp,
    Peers,
    Report,
    Submit,
    Wait,
    encode_batch,
    encode_frame,
)
from replica.link.interface import (
    DEFAULT_OPTIONS,
    LogAnswer,
    LogQuestion,
    LookUpAnswer,
    PeerSeen,
    Standing,
    SubmitOptions,
    TicketedLookUp,
    TicketedSubmission,
    refuse_as_overloaded,
    refuse_as_passive,
)
from replica.link.pending_calls import PendingCall, PendingCalls
from replica.link.settings import LinkSettings
from replica.notary.answers import Answer, NotNow, StateStatus
from replica.notary.requests import Submission
from replica.telemetry.counts import ApiCounts

EXPIRY_INTERVALS = 20  # checks for expired calls within `answer_max_s`; a deadline is late by up to one interval
_SUBMISSION_OVERHEAD_BYTES = 1_024  # approximate size of a submission without its canonical bytes


class LinkClient(FrameProtocol[FromCore]):
    """The `CoreLink` of a front end. It has one connection, and ends with it."""

    def __init__(self, path: Path, generation: str, name: str, settings: LinkSettings) -> None:
        super().__init__(msgspec.msgpack.Decoder(FromCore), settings.frame_max_bytes)
        self._path = path
        self._hello = Hello(PROTOCOL, generation, name)
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._pending = PendingCalls(settings.answer_max_s)
        self._standing = Standing(False, 0, settings.standing_max_age_s)
        self.standing_changes = ChangeSignal()
        self._peers: Sequence[PeerSeen] = ()
        self._heard_at_s = float("-inf")
        self._welcome = asyncio.Event()
        self._ended = asyncio.Event()
        self._submissions: dict[SubmitOptions, list[TicketedSubmission]] = {}
        self._look_ups: list[TicketedLookUp] = []
        self._queued_bytes = 0
        self._writing_paused = False
        self._expiry: asyncio.Task[None] | None = None

    @property
    def standing(self) -> Standing:
        """The core's newest report; passive once the core was silent for `standing_max_age_s`."""
        standing = self._standing
        if standing.active and self.is_silent:
            return standing.as_passive()
        return standing

    @property
    def is_silent(self) -> bool:
        """See CoreLink: for `standing_max_age_s`."""
        return self._loop.time() - self._heard_at_s > self._settings.standing_max_age_s

    @property
    def peers(self) -> Sequence[PeerSeen]:
        """What the core last saw of the other replicas; of a silent core's, nobody knows whether they still answer."""
        if not self.is_silent:
            return self._peers
        return [PeerSeen(one.name, one.active, one.epoch, one.seen_us, answers=False) for one in self._peers]

    async def connect(self) -> None:
        """Connect, and wait for the core's Hello. Raises LinkBroken when there is none of our generation."""
        try:
            async with asyncio.timeout(self._settings.hello_max_s):
                await self._loop.create_unix_connection(lambda: self, str(self._path))
                await self._welcome.wait()
        except (OSError, TimeoutError) as error:  # a TimeoutError is an OSError, but we do not rely on that
            raise LinkBroken(f"no link to the core at {self._path}: {error!r}") from None
        if self._ended.is_set():
            raise LinkBroken(f"the core does not let us in: {self.broken or 'it closed the connection'}")
        self._expiry = asyncio.create_task(self._expire_for_ever(), name="link expiry")

    async def wait_ended(self) -> str:
        """Wait for the end of the link, and return the reason. By then every waiting call has its answer."""
        await self._ended.wait()
        return self.broken or "the core closed the connection"

    def close(self) -> None:
        """End the link after what was written has been sent. May be repeated."""
        if self.transport is not None:
            self.transport.close()

    def report(self, counts: ApiCounts) -> None:
        """Report to the core what this front end has counted so far."""
        if self.transport is not None and not self._ended.is_set() and not self._writing_paused:
            self.transport.write(encode_frame(Report(counts), self._settings.frame_max_bytes))

    async def submit(
        self,
        submissions: Sequence[Submission],
        options: SubmitOptions = DEFAULT_OPTIONS,
        on_wait: Callable[[float], None] | None = None,
    ) -> list[Answer]:
        """See CoreLink. Answers OVERLOADED by itself while the core has as much of ours as it accepts."""
        if not submissions:
            return []
        refusal = self._refusal(len(submissions))
        if refusal is not None:
            return [refusal] * len(submissions)
        call = self._open(len(submissions), on_wait)
        queue = self._submissions.setdefault(options, [])
        for ticket, submission in enumerate(submissions, call.first):
            queue.append((ticket, submission))
            self._queued_bytes += len(submission.request) + _SUBMISSION_OVERHEAD_BYTES
        return cast("list[Answer]", await call.future)

    async def look_up(self, tx_id: bytes) -> Answer:
        """See CoreLink."""
        return cast(Answer, await self._ask(tx_id))

    async def look_up_state(self, state: bytes) -> StateStatus | NotNow:
        """See CoreLink."""
        return cast("StateStatus | NotNow", await self._ask(state))

    async def ask_log(self, question: LogQuestion) -> LogAnswer:
        """See CoreLink."""
        if self.transport is None or self.transport.is_closing():
            return refuse_as_passive(self.standing)
        if (refusal := self._overload(1)) is not None:
            return refusal
        call = self._pending.open(1)
        self.transport.write(encode_frame(AskLog(call.first, question), self._settings.frame_max_bytes))
        return cast("LogAnswer", (await call.future)[0])

    async def _ask(self, name: bytes) -> LookUpAnswer:
        refusal = self._refusal(1)
        if refusal is not None:
            return refusal
        call = self._open(1)
        self._look_ups.append((call.first, name))
        return (await call.future)[0]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert self.transport is not None
        self.transport.set_write_buffer_limits(high=self._settings.buffer_max_bytes)
        self.transport.write(encode_frame(self._hello, self._settings.frame_max_bytes))

    def connection_lost(self, exc: Exception | None) -> None:
        self._standing = self._standing.as_passive()
        self.standing_changes.notify()
        self._ended.set()
        self._welcome.set()
        self._submissions, self._look_ups = {}, []
        self._pending.abandon()
        if self._expiry is not None:
            self._expiry.cancel()

    def pause_writing(self) -> None:
        self._writing_paused = True

    def resume_writing(self) -> None:
        self._writing_paused = False

    def received(self, frame: FromCore) -> None:
        self._heard_at_s = self._loop.time()
        if isinstance(frame, Hello):
            if not hmac.compare_digest(frame.generation.encode(), self._hello.generation.encode()):
                raise LinkBroken("a core of another generation")
            self._welcome.set()
        elif not self._welcome.is_set():
            raise LinkBroken("no hello")
        elif isinstance(frame, Answers):
            self._pending.settle(frame.batch)
        elif isinstance(frame, Wait):
            self._pending.prolong(frame.tickets, frame.wait_s)
        elif isinstance(frame, Peers):
            self._peers = frame.seen
        elif frame.standing != self._standing:
            self._standing = frame.standing
            self.standing_changes.notify()

    def _refusal(self, count: int) -> NotNow | None:
        standing = self.standing
        return self._overload(count) if standing.active else refuse_as_passive(standing)

    def _overload(self, count: int) -> NotNow | None:
        too_many = self._pending.open_count + count > self._settings.tickets_max
        if too_many or self._writing_paused or self._queued_bytes > self._settings.buffer_max_bytes:
            return refuse_as_overloaded(self.standing, "the core has as much from this front end as it takes")
        return None

    def _open(self, count: int, on_wait: Callable[[float], None] | None = None) -> PendingCall:
        """Take tickets. What is queued is sent as one frame at the end of this turn of the event loop."""
        if not self._submissions and not self._look_ups:
            self._loop.call_soon(self._flush)
        return self._pending.open(count, on_wait)

    def _flush(self) -> None:
        submissions, look_ups = self._submissions, self._look_ups
        self._submissions, self._look_ups, self._queued_bytes = {}, [], 0
        if self.transport is None or self.transport.is_closing():
            return  # all of them were answered when the link ended
        frame_max_bytes, frames = self._settings.frame_max_bytes, list[bytes]()
        try:
            for options, batch in submissions.items():
                frames.extend(encode_batch(partial(_submit, options), batch, frame_max_bytes))
            if look_ups:
                frames.extend(encode_batch(LookUp, look_ups, frame_max_bytes))
        except LinkBroken as error:
            self.cut(str(error))
            return
        self.transport.write(frames[0] if len(frames) == 1 else b"".join(frames))

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(self._settings.answer_max_s / EXPIRY_INTERVALS)
            self._pending.expire()
            if self._standing.active and not self.standing.active:
                self.standing_changes.notify()  # silence is a change as well


def _submit(options: SubmitOptions, batch: list[TicketedSubmission]) -> Submit:
    return Submit(batch, options)
