"""Appended: gives submissions their sequence numbers and stamps, and writes them to the log."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol

from replica.active.numbers import Numbers
from replica.active.own_records import Made, OwnRecords
from replica.active.parts import Parts
from replica.active.waiting import Waiting, send
from replica.log.interface import EarlyLogWriter, LogWriter
from replica.notary.answers import AcceptedEarly, NotNow
from replica.notary.errors import LogUnavailable
from replica.notary.records import BarrierRecord


class Numbering(Protocol):
    """Where sequence numbers come from: from the holder, or from a range that this replica drew. `sharers`: how many
    replicas serve now, this one among them."""

    sharers: int

    def numbers_now(self) -> tuple[BarrierRecord, Numbers] | None:
        """The barrier to write under, and the numbers; None while nothing may be logged."""

    def log_failed(self, error: LogUnavailable) -> None:
        """The log takes no more from the writer; some records may have been handed over."""


class Appender:
    """Logs what is admitted under the activation in force. What cannot be logged at this moment is held, in order."""

    def __init__(self, parts: Parts, numbering: Numbering, writer: LogWriter) -> None:
        self._parts = parts
        self._numbering = numbering
        self._writer = writer
        self.own = OwnRecords()
        self.held: deque[Waiting] = deque()  # bounded by the intake
        self.commands: dict[bytes, Waiting] = {}  # by change id: on their way, held ones as well
        self.busy_since_s = parts.clock.boottime_s()  # when the first caller began to wait, or the newest answers
        self.has_failed = False  # the log takes no more from this writer

    def append(self, admitted: Sequence[Waiting]) -> list[tuple[Waiting, NotNow]]:
        """Log admitted submissions. Returns the answers of those of which no record can be made."""
        if admitted and not self.own.sent:
            self.busy_since_s = self._parts.clock.boottime_s()
        for waiting in admitted:
            self.commands[waiting.command.change_id] = waiting
        self.held.extend(admitted)
        return self.resume()

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

    def resume(self) -> list[tuple[Waiting, NotNow]]:
        """Log what is held, if an activation, its numbers and the clock allow it now. Returns as `append`."""
        if not self.held or self.has_failed or not self._parts.follower.assured:
            return []
        found = self._numbering.numbers_now()
        if found is None:
            return []
        barrier, numbers = found
        due = [self.held.popleft() for _ in range(min(len(self.held), numbers.left))]
        made = self.own.make(due, barrier, numbers.next, self._parts.clock.wall_us())
        numbers.use(len(made.values))
        self.settle(waiting for waiting, _ in made.failed)
        self._write(made)
        answer = self._parts.failures.answer
        return [(waiting, answer(waiting.submission.submission_id, error)) for waiting, error in made.failed]

    def settle(self, settled: Iterable[Waiting]) -> None:
        """These are on their way no more: what is known of their commands is in the index now."""
        for waiting in settled:
            if self.commands.get(waiting.command.change_id) is waiting:
                del self.commands[waiting.command.change_id]

    async def close(self) -> None:
        """Stop writing; records that were not sent yet are purged."""
        await self._writer.close()

    def _write(self, made: Made) -> None:
        try:
            if made.early and isinstance(self._writer, EarlyLogWriter):
                self._writer.append_early(made.values, partial(self._answer_early, made.early))
            else:  # what asks for an early answer is then answered when it is read back
                self._writer.append_all(made.values)
        except LogUnavailable as error:  # some may have been handed over: none is logged anew
            self.has_failed = True
            self._numbering.log_failed(error)

    def _answer_early(self, early: Mapping[int, Waiting], places: Mapping[int, str]) -> None:
        """Answer those who want to know where the leader has their records, committed or not."""
        wait_s = self._parts.estimate.wait_s(0)
        send(
            (waiting, AcceptedEarly(waiting.command.submission_id, places[position], wait_s))
            for position, waiting in early.items()
            if position in places
        )
