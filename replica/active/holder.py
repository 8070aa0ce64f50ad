"""What the holder of the lock or lease writes itself: barriers, and notes of officers. Its numbers begin with 0."""

from __future__ import annotations

import msgspec

from ha.ending import Cause, Ending
from ha.errors import ActivationFailed
from replica.active.endings import ending_of
from replica.active.numbers import Numbers, holders_range
from replica.active.parts import Parts
from replica.log.interface import LogWriter
from replica.notary.errors import LogUnavailable
from replica.notary.formats import Formats
from replica.notary.granters import Database, Pause
from replica.notary.parties import PartyNote
from replica.notary.position import Position
from replica.notary.records import ACTIVATION_ID_BYTES, BarrierRecord, encode_record

_CLOCK_JUMP_MAX_US = 1_500_000  # above a leap second; two heartbeats may pass until the lock session sees a jump


class Holder:
    """The holder's records of one activation; the numbers of its submissions as well, where it alone serves."""

    sharers = 1

    def __init__(self, parts: Parts, database: Database) -> None:
        """`database`: the one that grants our epochs."""
        self._parts = parts
        self._database = database
        self._writer: LogWriter | None = None
        self._numbers = Numbers(holders_range(str(database)))
        self._booted_us = self._boot_moment_us()  # by the wall clock that agreed with the database's just now
        self.barrier: BarrierRecord | None = None  # the newest of ours
        self.in_force: Position | None = None  # after the run in which our barrier came into force
        self.is_superseded = False  # a higher barrier came into force after ours

    async def open(self) -> None:
        """Open the log for writing. May be repeated."""
        if self._writer is None:
            self._writer = await self._parts.request_log.open_writer()

    @property
    def writer(self) -> LogWriter:
        """What writes to the log. Raises ActivationFailed before it is open."""
        if self._writer is None:
            raise ActivationFailed("the log is not open for writing")
        return self._writer

    @property
    def is_connected(self) -> bool:
        """Whether the log's writer has a connection, once it was opened."""
        return self._writer is None or self._writer.is_connected

    async def close(self) -> None:
        """Stop writing; records that were not sent yet are purged."""
        if self._writer is not None:
            await self._writer.close()

    def append_barrier(self, epoch: int, formats: Formats, *, pauses: bool) -> None:
        """Append a barrier with an activation id of its own. `pauses`: it pauses service, so nobody may use that id."""
        name, own = self._parts.name, self._database
        granter = Pause(own.kind, own.system, own.timeline, name) if pauses else own
        activation_id = self._parts.random_bytes(ACTIVATION_ID_BYTES)
        self.barrier = BarrierRecord(epoch, activation_id, name, granter, formats.records, formats.rules)
        self.repeat_barrier(self.barrier)

    def repeat_barrier(self, barrier: BarrierRecord) -> None:
        """Append a barrier as it is."""
        self.writer.append(encode_record(barrier))

    def go_on_from(self, barrier: BarrierRecord, position: Position) -> None:
        """Our barrier came into force before this activation had parts: what is applied after this position is ours."""
        self.barrier, self.in_force = barrier, position

    def wrote(self, activation_id: bytes) -> bool:
        """Whether that is the id of our activation."""
        return self.barrier is not None and self.barrier.activation_id == activation_id

    def note(self, position: Position) -> None:
        """The position after a run that was applied: whether our barrier is in force, or another one came after it."""
        ours = position.barrier is not None and self.wrote(position.barrier.activation_id)
        if self.in_force is not None:
            self.is_superseded = not ours
        elif ours:
            self.in_force = position

    def append_note(self, note: PartyNote) -> int:
        """Append what an officer signed, with a place in the log; returns its sequence number. Raises InvariantBroken
        when it has more bytes than a log accepts."""
        if self.barrier is None:
            raise ActivationFailed("no barrier was appended")
        placed = msgspec.structs.replace(
            note,
            format=self.barrier.record_format,
            activation_id=self.barrier.activation_id,
            sequence=self._numbers.next,
            stamp_us=self._parts.clock.wall_us(),
        )
        value = encode_record(placed)
        self._numbers.use(1)
        if not self._clock_jumped():
            try:
                self.writer.append(value)
            except LogUnavailable as error:
                self.log_failed(error)
        return placed.sequence

    def numbers_now(self) -> tuple[BarrierRecord, Numbers] | None:
        """See Numbering: those of its own activation, while that is in force."""
        if self.barrier is None or self.in_force is None or self.is_superseded or self._clock_jumped():
            return None
        return self.barrier, self._numbers

    def log_failed(self, error: LogUnavailable) -> None:
        """See Numbering: the activation ends."""
        self._parts.step_down(ending_of(error, Cause.LOG_STALLED))

    def _clock_jumped(self) -> bool:
        """A stamp from the future would close time windows for everybody, until that future is past."""
        jumped = abs(self._boot_moment_us() - self._booted_us) > _CLOCK_JUMP_MAX_US
        if jumped:
            self._parts.step_down(Ending(Cause.CLOCK, "the wall clock jumped"))
        return jumped

    def _boot_moment_us(self) -> int:
        """When the machine booted by its wall clock, microseconds UTC. It is constant unless that clock jumps."""
        return self._parts.clock.wall_us() - round(self._parts.clock.boottime_s() * 1e6)
