"""Serves: takes submissions, logs them, and answers what was read back and applied. Whoever leads, this is the same.

Each part owns one step of a submission:

    offered    Intake        intake.py       bounds, the users' turns
    admitted   Admission     admission.py    not known to the index, nor on its way
    appended   Appender      appending.py    sequence number, stamp, the log
    read back  OwnRecords    own_records.py  what the follower applied meets who waits
    answered   Answering     answering.py    receipt and answer

What differs is who gives the sequence numbers: the holder of the lock (holder.py), where it alone serves, or a range
that this replica drew (worker.py), where all serve.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from contextlib import suppress

import structlog

from replica.active.admission import Admission
from replica.active.admission_budget import AdmissionBudget
from replica.active.answering import Answering
from replica.active.appending import Appender, Numbering
from replica.active.intake import Intake
from replica.active.own_records import split_by_patience
from replica.active.parts import Parts
from replica.active.tasks import SessionTasks
from replica.active.waiting import Waiting, send
from replica.following.apply import Applied
from replica.log.interface import LogWriter
from replica.notary.answers import NotNow
from replica.notary.codes import Code
from replica.notary.errors import InvariantBroken

log = structlog.get_logger()

_DRAIN_TICK_S = 0.005


class Server:
    """Built with an open writer; then `begin`, any use, `drain` and `close`. An instance is used once."""

    def __init__(
        self,
        parts: Parts,
        numbering: Numbering,
        writer: LogWriter,
        budget: AdmissionBudget,
    ) -> None:
        self._parts = parts
        self.intake = Intake(parts, budget, numbering)
        self.appender = Appender(parts, numbering, writer)
        self._answering = Answering(parts, self.appender, budget)
        self.admission = Admission(parts, intake=self.intake, appender=self.appender, answering=self._answering)
        self._tasks = SessionTasks(parts)
        self.closing = False

    def begin(self) -> None:
        """Take submissions from now on."""
        self._tasks.start(self.admission.run(), "admit")

    def resume(self) -> None:
        """Go on with what is queued and held: something that kept it back may be over."""
        self.intake.wake()
        for waiting, answer in self.appender.resume():
            self._leave([waiting], answer)

    async def renew(self, writer: LogWriter) -> None:
        """Go on with this writer in place of one that has ended.

        What that one was given, and was not read back, is in the log, or comes there yet, or is lost. It is waited for
        as at the end, and answered as unknown then. It is logged anew only where a barrier makes it void.
        """
        unread = list(self.appender.own.sent)
        await self.appender.renew(writer)
        if unread:
            self._tasks.start(self._give_up(unread), "unread")
        self.resume()

    async def _give_up(self, unread: Collection[int]) -> None:
        sent = self.appender.own.sent
        await self._until_read(unread)
        lost = [sent.pop(number)[0] for number in unread if number in sent]
        log.warning("append_outcome_unknown", count=len(lost))
        self._leave(lost, self._unknown("the connection to the log was lost"))

    async def _until_read(self, numbers: Collection[int]) -> None:
        """Return once none of these records is waited for, and after `drain_answers_s` at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._parts.settings.drain_answers_s):
                while not self.appender.own.sent.keys().isdisjoint(numbers):
                    await self._parts.clock.sleep_s(_DRAIN_TICK_S)

    def take(self, applied: Applied) -> None:
        """Settle our records of a run: answered, or logged anew. Raises InvariantBroken."""
        read = self.appender.own.take(applied)
        for offset, waiting in read.unreadable:
            error = InvariantBroken(f"a request was logged at offset {offset} that no reader can read")
            self._leave([waiting], self._parts.failures.answer(waiting.command.submission_id, error))
        if read.decided:
            settled = [waiting for waiting, _, _ in read.decided]
            self.appender.settle(settled)
            states = sum([waiting.states for waiting in settled])
            self._answering.answer_decided(read.decided, states)
            self.intake.leave(len(settled), states)
        if read.again:
            self._log_anew(read.again)

    def _log_anew(self, again: Sequence[Waiting]) -> None:
        """A barrier made their records void. They go before all that is held, which came later."""
        patient, weary = split_by_patience(again)
        if self.closing:
            patient, weary = [], list(again)
        log.info("logged_anew", count=len(patient), given_up=len(weary))
        self._leave(weary, self._not_logged("the activation changed meanwhile"))
        self.appender.held.extendleft(reversed(patient))
        self.resume()

    def _leave(self, settled: Sequence[Waiting], answer: NotNow) -> None:
        self.appender.settle(settled)
        send((waiting, answer) for waiting in settled)
        self.intake.leave(len(settled), sum([waiting.states for waiting in settled]))

    def _not_logged(self, detail: str) -> NotNow:
        return NotNow(Code.NOT_ACTIVE.name, detail, self._parts.settings.retry_after_s)

    def _unknown(self, detail: str) -> NotNow:
        return NotNow(Code.OUTCOME_UNKNOWN.name, detail, self._parts.settings.retry_after_s)

    async def drain(self, reason: str) -> None:
        """Take no more, refuse what is queued, and wait briefly for what was logged."""
        self.closing = True
        self._parts.announce()
        refused = self._not_logged(f"the replica stopped serving: {reason}")
        send((waiting, refused) for waiting in self.intake.close())
        await self._until_read(list(self.appender.own.sent))

    async def close(self) -> None:
        """After `drain`: purge what was not sent. What was logged is answered as unknown, what was not as refused."""
        self.intake.stop()
        await self._tasks.end()
        await self.appender.close()
        unknown = self._unknown("the replica stopped serving")
        send((waiting, unknown) for waiting, _ in self.appender.own.sent.values())
        refused = self._not_logged("the replica stopped serving")  # the rest: whoever was answered gets no other answer
        send((waiting, refused) for waiting in (*self.appender.held, *self.admission.admitting))
        self.appender.held.clear()
        self.appender.own.sent.clear()
