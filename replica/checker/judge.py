"""The reference judge: a second implementation of the void rule and the rules, with one dict and one set for each.

It is written from the text of the design and shares no code with `replica.notary.reading` and `replica.notary.rules`,
so a mistake goes unnoticed only if it was made twice. It reads the whole log from the first record on, one record at a
time. Its memory grows with the states consumed and the transactions notarised, not with the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec

from replica.notary.canonical import decode_request
from replica.notary.errors import BadRequest, FormatUnknown, InvariantBroken
from replica.notary.records import BarrierRecord, RequestRecord, SettlementRecord, Undecodable, decode_record
from replica.notary.requests import Request, TimeWindow
from replica.notary.salvage import NO_SALVAGES, TX_KEY, Salvages, salvage_named

FORMATS_KNOWN = (1,)
RULES_KNOWN = (1,)

NOTARISED = "NOTARISED"
TX_ID_REUSED = "TX_ID_REUSED"
STATE_CONFLICT = "STATE_CONFLICT"
TIME_WINDOW_CLOSED = "TIME_WINDOW_CLOSED"

UNDECODABLE = "undecodable"
NOT_IN_FORCE = "not_in_force"
REPEAT = "repeat"
BARRIER_NOT_HIGHER = "barrier_not_higher"


class JudgedVoid(msgspec.Struct, frozen=True, gc=False):
    """A record without effect; `reason` is one of the four above."""

    offset: int
    reason: str


class JudgedBarrier(msgspec.Struct, frozen=True, gc=False):
    """A barrier that came into force; or, if `repeated`, a copy of the barrier in force, which changes nothing."""

    offset: int
    record: BarrierRecord
    repeated: bool


class JudgedSettlement(msgspec.Struct, frozen=True, gc=False):
    """A settlement that counts. `judged_us` is the highest stamp before it."""

    offset: int
    record: SettlementRecord
    barrier: BarrierRecord
    judged_us: int


class ConsumedState(msgspec.Struct, frozen=True, gc=False):
    """A consumed state that caused a refusal: its consumer, where it was consumed, and how the request used it."""

    state: bytes
    consumed_by: bytes  # transaction id
    consumed_at: int  # log offset
    usage: str  # "input" or "reference"


class JudgedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that counts, with its verdict. `barrier` is the one in force; `notarised_offset` None if refused."""

    offset: int
    record: RequestRecord
    barrier: BarrierRecord
    request: Request
    content_digest: bytes
    judged_us: int
    outcome: str
    notarised_offset: int | None
    conflicts: tuple[ConsumedState, ...]


class JudgedLost(msgspec.Struct, frozen=True, gc=False):
    """A lost record, and the transaction that it notarised according to its salvage; None: it notarised none."""

    offset: int
    tx_id: bytes | None
    content_digest: bytes | None


Judged = JudgedLost | JudgedVoid | JudgedBarrier | JudgedSettlement | JudgedRequest


class ReferenceJudge:
    """Reads a log from offset 0 and says of each record what it is."""

    def __init__(self, salvages: Salvages = NO_SALVAGES) -> None:
        """`salvages`: those that lost records name; a lost record without its salvage raises SalvageMissing."""
        self._salvages = salvages
        self.offset = -1  # of the newest record read
        self.barrier: BarrierRecord | None = None  # in force
        self.sequences: set[int] = set()  # met in the activation in force
        self.stamp_us = 0  # highest of all counting requests so far
        self.consumed: dict[bytes, bytes] = {}  # state -> consuming transaction id
        self.notarised: dict[bytes, tuple[bytes, int]] = {}  # transaction id -> content digest, offset

    def judge(self, log: Iterable[tuple[int, bytes]]) -> Iterator[Judged]:
        """Judge the next records (offset, value). Raises InvariantBroken on a gap, FormatUnknown for a newer log."""
        for offset, value in log:
            yield self.read(offset, value)

    def read(self, offset: int, value: bytes) -> Judged:
        """Judge the next record; see `judge`."""
        if offset != self.offset + 1:
            raise InvariantBroken(f"the log goes from offset {self.offset} to {offset}")
        self.offset = offset
        barrier = self.barrier
        if salvage_named(offset, value) is not None:
            return self._lost(self._salvages.entries_of([(offset, value)]))
        try:
            record = decode_record(value, 0 if barrier is None else barrier.record_format)
            if isinstance(record, BarrierRecord):
                return self._barrier(record)
            if barrier is None or record.activation_id != barrier.activation_id:
                return JudgedVoid(offset, NOT_IN_FORCE)
            if isinstance(record, SettlementRecord):
                return self._settlement(record, barrier)
            assert isinstance(record, RequestRecord)
            return self._request(record, barrier, *decode_request(record.submission.request))
        except (Undecodable, BadRequest):
            return JudgedVoid(offset, UNDECODABLE)

    def _lost(self, entries: Mapping[bytes, bytes]) -> Judged:
        digest = tx_id = None
        for key, value in entries.items():
            if key[:1] == TX_KEY:
                tx_id, digest = key[1:], value[:32]
                if tx_id in self.notarised:
                    raise InvariantBroken(f"the salvage notarises {tx_id.hex()} again, at offset {self.offset}")
                self.notarised[tx_id] = (digest, self.offset)
            elif key[1:] in self.consumed:
                raise InvariantBroken(f"the salvage consumes state {key[1:].hex()} again, at offset {self.offset}")
            else:
                self.consumed[key[1:]] = value[:32]
        return JudgedLost(self.offset, tx_id, digest)

    def _barrier(self, record: BarrierRecord) -> Judged:
        in_force = self.barrier
        if record == in_force:
            return JudgedBarrier(self.offset, record, repeated=True)
        if in_force is not None and record.epoch <= in_force.epoch:
            return JudgedVoid(self.offset, BARRIER_NOT_HIGHER)
        if record.record_format not in FORMATS_KNOWN or record.rules_version not in RULES_KNOWN:
            raise FormatUnknown(f"the barrier of epoch {record.epoch} asks for what the judge does not know")
        self.barrier = record
        self.sequences = set()
        return JudgedBarrier(self.offset, record, repeated=False)

    def _settlement(self, record: SettlementRecord, barrier: BarrierRecord) -> Judged:
        if record.sequence in self.sequences:
            return JudgedVoid(self.offset, REPEAT)
        self.sequences.add(record.sequence)
        return JudgedSettlement(self.offset, record, barrier, self.stamp_us)

    def _request(self, record: RequestRecord, barrier: BarrierRecord, request: Request, digest: bytes) -> Judged:
        if record.sequence in self.sequences:
            return JudgedVoid(self.offset, REPEAT)
        self.sequences.add(record.sequence)
        self.stamp_us = max(self.stamp_us, record.stamp_us)
        notarised_offset: int | None = None
        conflicts: list[ConsumedState] = []
        if request.tx_id in self.notarised:
            known_digest, known_offset = self.notarised[request.tx_id]
            if known_digest == digest:
                outcome, notarised_offset = NOTARISED, known_offset
            else:
                outcome = TX_ID_REUSED
        elif conflicts := self._conflicts(request):
            outcome = STATE_CONFLICT
        elif not _is_inside(request.window, self.stamp_us):
            outcome = TIME_WINDOW_CLOSED
        else:
            outcome, notarised_offset = NOTARISED, self.offset
            self.notarised[request.tx_id] = (digest, self.offset)
            for state in request.inputs:
                self.consumed[state] = request.tx_id
        return JudgedRequest(
            self.offset,
            record,
            barrier,
            request,
            digest,
            self.stamp_us,
            outcome,
            notarised_offset,
            tuple(conflicts),
        )

    def _conflicts(self, request: Request) -> list[ConsumedState]:
        conflicts = []
        for usage, states in (("input", request.inputs), ("reference", request.references)):
            for state in states:
                if state in self.consumed:
                    consumed_by = self.consumed[state]
                    conflicts.append(ConsumedState(state, consumed_by, self.notarised[consumed_by][1], usage))
        return conflicts


def _is_inside(window: TimeWindow | None, time_us: int) -> bool:
    """[from, until): from inclusive, until exclusive."""
    if window is None:
        return True
    if window.from_us is not None and time_us < window.from_us:
        return False
    return window.until_us is None or time_us < window.until_us
