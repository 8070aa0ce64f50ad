"""Appended: gives records their sequence numbers and stamps, writes them to the log, and keeps the waiting callers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

import msgspec

from ha.ending import Cause, Ending
from ha.errors import ActivationFailed
from replica.active.endings import ending_of
from replica.active.parts import Parts
from replica.active.waiting import Waiting, send
from replica.log.interface import EarlyLogWriter, LogWriter
from replica.notary.answers import AcceptedEarly, NotNow
from replica.notary.errors import InvariantBroken, LogUnavailable
from replica.notary.formats import Formats
from replica.notary.leases import release_text
from replica.notary.parties import PartyNote
from replica.notary.records import (
    ACTIVATION_ID_BYTES,
    RECORD_FORMATS,
    BarrierRecord,
    RequestRecord,
    encode_record,
)

_CLOCK_JUMP_MAX_US = 1_500_000  # above a leap second; two heartbeats may pass until the lock session sees a jump


class Appender:
    """The records of one activation. Sequence numbers are dense from 0."""

    def __init__(self, parts: Parts, database: str) -> None:
        """`database`: the database that grants our epochs, as barriers name it."""
        self._parts = parts
        self._database = database
        self.activation_id = b""  # of the newest barrier of ours
        self.formats = Formats()  # of what is written; the barrier names them
        self.waiting: dict[int, Waiting] = {}  # by sequence number, in the order of appending
        self.commands: dict[bytes, Waiting] = {}  # by change id: commands that are logged and not read back yet
        self.busy_since_s = parts.clock.boottime_s()  # when the first caller began to wait, or the newest answers
        self._sequence = 0
        self._writer: LogWriter | None = None
        self._booted_us = self._boot_moment_us()  # by the wall clock that agreed with the database's just now

    async def open(self) -> None:
        """Open the log for writing. May be repeated."""
        if self._writer is None:
            self._writer = await self._parts.request_log.open_writer()

    @property
    def is_connected(self) -> bool:
        """Whether the log's writer has a connection, once it was opened."""
        return self._writer is None or self._writer.is_connected

    async def close(self) -> None:
        """Stop writing; records that were not sent yet are purged."""
        if self._writer is not None:
            await self._writer.close()

    def append_barrier(self, epoch: int, *, pauses: bool) -> None:
        """Append a barrier with an activation id of its own. `pauses`: it pauses service, so nobody may use that id."""
        database = release_text(self._database, self._parts.name) if pauses else self._database
        self.activation_id = self._parts.random_bytes(ACTIVATION_ID_BYTES)
        formats = self.formats
        self.repeat_barrier(
            BarrierRecord(epoch, self.activation_id, self._parts.name, database, formats.records, formats.rules)
        )

    def repeat_barrier(self, barrier: BarrierRecord) -> None:
        """Append a barrier as it is."""
        self._require_writer().append(encode_record(barrier))

    def append_note(self, note: PartyNote) -> int:
        """Append what an officer signed, with a place in the log; returns its sequence number. Raises InvariantBroken
        when it has more bytes than a log accepts."""
        sequence, stamp_us = self._sequence, self._parts.clock.wall_us()
        placed = msgspec.structs.replace(
            note,
            format=self.formats.records,
            activation_id=self.activation_id,
            sequence=sequence,
            stamp_us=stamp_us,
        )
        value = encode_record(placed)
        self._sequence = sequence + 1
        self._log([value], {})
        return sequence

    def append(self, admitted: Sequence[Waiting]) -> dict[int, NotNow]:
        """Log admitted submissions; each waits by its sequence number, never by its transaction id.

        No record can be made of some of them. Their answers are returned, by `id` of the Waiting.
        """
        if not admitted:
            return {}
        if not self.waiting:
            self.busy_since_s = self._parts.clock.boottime_s()
        stamp_us = self._parts.clock.wall_us()
        values: list[bytes] = []
        early: dict[int, Waiting] = {}  # by position in values
        failed: dict[int, NotNow] = {}
        for waiting in admitted:
            sequence, submission = self._sequence, waiting.submission
            try:
                values.append(encode_record(self._record_of(waiting, stamp_us)))
            except Exception as error:  # one caller's values
                failed[id(waiting)] = self._parts.failures.answer(submission.submission_id, error)
                continue
            if waiting.options.early:
                early[len(values) - 1] = waiting
            self._sequence = sequence + 1
            self.waiting[sequence] = waiting
            self.commands[waiting.command.change_id] = waiting
        self._log(values, early)
        return failed

    def _record_of(self, waiting: Waiting, stamp_us: int) -> RequestRecord:
        if waiting.terms is None:
            raise InvariantBroken("a submission is to be logged, and its deduplication period is not known")
        return RECORD_FORMATS[self.formats.records].make_request(
            self.formats.records,
            self.activation_id,
            self._sequence,
            stamp_us,
            waiting.submission,
            waiting.terms.deduplication_us,
            waiting.terms.after_offset,
        )

    def read_back(self, commands: Iterable[Waiting]) -> None:
        """These were read back: what is known of their commands is in the index now."""
        for waiting in commands:
            if self.commands.get(waiting.command.change_id) is waiting:
                del self.commands[waiting.command.change_id]

    def _log(self, values: Sequence[bytes], early: Mapping[int, Waiting]) -> None:
        if abs(self._boot_moment_us() - self._booted_us) > _CLOCK_JUMP_MAX_US:
            # a stamp from the future would close time windows for everybody, until that future is past
            self._parts.step_down(Ending(Cause.CLOCK, "the wall clock jumped"))
            return
        try:
            writer = self._require_writer()
            if early and isinstance(writer, EarlyLogWriter):
                writer.append_early(values, partial(self._answer_early, early))
            else:  # what asks for an early answer is then answered when it is read back
                writer.append_all(values)
        except LogUnavailable as error:
            self._parts.step_down(ending_of(error, Cause.LOG_STALLED))

    def _answer_early(self, early: Mapping[int, Waiting], places: Mapping[int, str]) -> None:
        """Answer those who want to know where the leader has their records, committed or not."""
        wait_s = self._parts.estimate.wait_s(0)
        send(
            (waiting, AcceptedEarly(waiting.command.submission_id, places[position], wait_s))
            for position, waiting in early.items()
            if position in places
        )

    def _boot_moment_us(self) -> int:
        """When the machine booted by its wall clock, microseconds UTC. It is constant unless that clock jumps."""
        return self._parts.clock.wall_us() - round(self._parts.clock.boottime_s() * 1e6)

    def _require_writer(self) -> LogWriter:
        if self._writer is None:
            raise ActivationFailed("the log is not open for writing")
        return self._writer
