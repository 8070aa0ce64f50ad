"""One shift of a worker, from the writer that is open to the purge: intake, admission, its own records, answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import structlog

from replica.active.admission import Admission
from replica.active.answering import Answering
from replica.active.intake import Intake
from replica.active.numbers import Numbers, writable
from replica.active.own_records import Again, OwnRecords, split_by_patience
from replica.active.parts import Parts
from replica.active.waiting import Waiting, send
from replica.following.apply import Applied
from replica.log.interface import LogWriter
from replica.notary.answers import NotNow
from replica.notary.errors import Code, InvariantBroken, LogUnavailable

log = structlog.get_logger()

_DRAIN_TICK_S = 0.005


class Desks(Protocol):
    """What a shift asks of its worker. `sharers`: how many replicas serve now, this one among them."""

    sharers: int

    @property
    def pruned_to(self) -> int:
        """See LedgerView."""

    @property
    def last_ledger_offset(self) -> int:
        """See LedgerView."""

    async def log_offset_of(self, ledger_offset: int) -> int | None:
        """The log offset of a published completion; None if it is pruned."""

    def why_not_stamp(self) -> str | None:
        """Why no record may be stamped now; None if one may."""

    def numbers(self) -> Numbers | None:
        """The numbers that may be used under the activation in force."""


class PublishedOnly:
    """The ledger as a worker sees it: it queues no completions, so only the database knows their log offsets."""

    def __init__(self, desks: Desks) -> None:
        self._desks = desks

    @property
    def pruned_to(self) -> int:
        """See LedgerView."""
        return self._desks.pruned_to

    @property
    def last_ledger_offset(self) -> int:
        """See LedgerView."""
        return self._desks.last_ledger_offset

    def log_offset_of(self, ledger_offset: int) -> int | None:
        """Only the database has it."""
        return None


class WorkerAppender:
    """Logs what is admitted under the activation in force. What cannot be logged at this moment is held, in order."""

    def __init__(
        self, parts: Parts, desks: Desks, writer: LogWriter, on_failed: Callable[[Waiting, NotNow], None]
    ) -> None:
        """`on_failed` gets the answers of those of which no record can be made, but for those that `append` returns."""
        self._parts = parts
        self._desks = desks
        self._writer = writer
        self._on_failed = on_failed
        self.own = OwnRecords()
        self.held: deque[Again] = deque()  # bounded by the intake; `times`: how often it was appended
        self.commands: dict[bytes, Waiting] = {}  # by change id: on their way, held ones as well
        self.busy_since_s = parts.clock.boottime_s()
        self.has_failed = False  # the log takes no more from this writer

    def append(self, admitted: Sequence[Waiting]) -> dict[int, NotNow]:
        """Log admitted submissions. Returns the answers of those of which no record can be made, by `id`."""
        if admitted and not self.own.sent:
            self.busy_since_s = self._parts.clock.boottime_s()
        for waiting in admitted:
            self.commands[waiting.command.change_id] = waiting
        self.held.extend(Again(waiting, 0) for waiting in admitted)
        admitted_here = {id(waiting) for waiting in admitted}
        failed: dict[int, NotNow] = {}
        for waiting, answer in self._log_held():
            if id(waiting) in admitted_here:
                failed[id(waiting)] = answer
            else:
                self._on_failed(waiting, answer)
        return failed

    @property
    def writer_has_ended(self) -> bool:
        """Whether the log takes nothing more from this writer. Nothing is lost meanwhile: what is admitted is held."""
        return self._writer.has_ended

    @property
    def is_connected(self) -> bool:
        """Whether the writer has a connection to the log."""
        return self._writer.is_connected

    async def renew(self, writer: LogWriter) -> None:
        """Log with this writer from now on. What the former one was given is not given to this one."""
        former, self._writer, self.has_failed = self._writer, writer, False
        await former.close()

    def resume(self) -> None:
        """Log what is held, if an activation, numbers and the clock allow it now."""
        for waiting, answer in self._log_held():
            self._on_failed(waiting, answer)

    def _log_held(self) -> list[tuple[Waiting, NotNow]]:
        barrier, numbers = writable(self._parts.follower.position), self._desks.numbers()
        if not self.held or barrier is None or numbers is None or self._desks.why_not_stamp():
            return []
        if self.has_failed or self.writer_has_ended or not self._parts.follower.assured:
            return []
        stamp_us = self._parts.clock.wall_us()
        values: list[bytes] = []
        failed: list[tuple[Waiting, NotNow]] = []
        while self.held and numbers.left:
            again = self.held.popleft()
            try:
                values.append(self.own.make(again.waiting, barrier, numbers, stamp_us, times=again.times + 1))
            except Exception as error:  # one caller's values
                submission_id = again.waiting.submission.submission_id
                self.read_back([again.waiting])
                failed.append((again.waiting, self._parts.failures.answer(submission_id, error)))
        try:
            self._writer.append_all(values)
        except LogUnavailable as error:  # some may have been handed over: none is logged anew
            log.warning("worker_append_failed", detail=error.detail)
            self.has_failed = True
        return failed

    def read_back(self, settled: Sequence[Waiting]) -> None:
        """These are on their way no more."""
        for waiting in settled:
            if self.commands.get(waiting.command.change_id) is waiting:
                del self.commands[waiting.command.change_id]

    async def close(self) -> None:
        """Stop writing; records that were not sent yet are purged."""
        await self._writer.close()


class Shift:
    """Built with an open writer; then `begin`, any use, and `close`. An instance is used once."""

    def __init__(self, parts: Parts, desks: Desks, writer: LogWriter) -> None:
        self._parts = parts
        self.intake = Intake(parts, lambda: desks.sharers)
        self.appender = WorkerAppender(parts, desks, writer, lambda waiting, answer: self._leave([waiting], answer))
        self._answering = Answering(parts, self.appender, self.intake.budget)
        self._admission = Admission(
            parts,
            desks,
            intake=self.intake,
            appender=self.appender,
            answering=self._answering,
            publisher=PublishedOnly(desks),
        )
        self._tasks: list[asyncio.Task[None]] = []
        self.closing = False

    def begin(self) -> None:
        """Take submissions from now on."""
        self._start(self._admission.run(), "admit")
        self._start(self._admission.run_aside(), "aside")

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def renew(self, writer: LogWriter) -> None:
        """Go on with this writer in place of one that has ended.

        What that one was given, and was not read back, is in the log, or comes there yet, or is lost. It is waited for
        as at the end of a shift, and answered as unknown then. It is logged anew only where a barrier makes it void.
        """
        unread = list(self.appender.own.sent)
        await self.appender.renew(writer)
        if unread:
            self._start(self._give_up(unread), "unread")
        self.appender.resume()

    async def _give_up(self, unread: Collection[int]) -> None:
        sent = self.appender.own.sent
        await self._until_read(unread)
        lost = [sent.pop(number).waiting for number in unread if number in sent]
        log.warning("append_outcome_unknown", count=len(lost))
        self._leave(lost, self._unknown("the connection to the log was lost"))

    async def _until_read(self, numbers: Collection[int]) -> None:
        """Return once none of these records is waited for, and after `drain_answers_s` at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._parts.settings.drain_answers_s):
                while not self.appender.own.sent.keys().isdisjoint(numbers):
                    await self._parts.clock.sleep_s(_DRAIN_TICK_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.remove(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._parts.fail(error)

    def take(self, applied: Applied, offsets: Mapping[int, int | None]) -> None:
        """Settle our records of a run: answered, or logged anew. `offsets`: in the ledger, by log offset."""
        read = self.appender.own.take(applied)
        for offset, waiting in read.unreadable:
            error = InvariantBroken(f"a request was logged at offset {offset} that no reader can read")
            self._leave([waiting], self._parts.failures.answer(waiting.command.submission_id, error))
        if read.decided:
            settled = [waiting for waiting, _, _ in read.decided]
            self.appender.read_back(settled)
            states = sum([waiting.states for waiting in settled])
            self._answering.answer_decided(read.decided, states, offsets)
            self.intake.leave(len(settled), states)
        if read.again:
            self._log_anew(read.again)

    def _log_anew(self, again: Sequence[Again]) -> None:
        """A barrier made their records void. They go before all that is held, which came later."""
        patient, weary = split_by_patience(again)
        if self.closing:
            weary = [*weary, *[each.waiting for each in patient]]
            patient = []
        log.info("logged_anew", count=len(patient), given_up=len(weary))
        self._leave(weary, self._not_logged("the activation changed meanwhile"))
        self.appender.held.extendleft(reversed(patient))
        self.appender.resume()

    def _leave(self, settled: Sequence[Waiting], answer: NotNow) -> None:
        self.appender.read_back(settled)
        send((waiting, answer) for waiting in settled)
        self.intake.leave(len(settled), sum([waiting.states for waiting in settled]))

    def _not_logged(self, detail: str) -> NotNow:
        return NotNow(Code.NOT_ACTIVE.name, detail, self._parts.settings.retry_after_s)

    def _unknown(self, detail: str) -> NotNow:
        return NotNow(Code.OUTCOME_UNKNOWN.name, detail, self._parts.settings.retry_after_s)

    async def close(self, reason: str) -> None:
        """Refuse what is queued, wait briefly for what was logged, purge the rest, and answer it as unknown."""
        self.closing = True
        self._parts.announce()
        refused = self._not_logged(f"the replica stopped serving: {reason}")
        send((waiting, refused) for waiting in self.intake.close())
        await self._until_read(list(self.appender.own.sent))
        self.intake.stop()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.appender.close()
        send((again.waiting, refused) for again in self.appender.held)
        send((waiting, refused) for waiting in self._admission.admitting)
        unknown = self._unknown("the replica stopped serving")
        send((sent.waiting, unknown) for sent in self.appender.own.sent.values())
        self.appender.own.sent.clear()
