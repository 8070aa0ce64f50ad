"""What a stretch of the log does to a position, found without knowing the position that it starts from.

The void rule goes through the log in order, so a reader in the middle needs the position before it. A survey is the
part of that work that needs no position: which barriers a stretch has, and which runs of sequence numbers of which
activation. Stretches are surveyed in parallel; `advance` then goes over the surveys in order, which are tiny, and each
stretch can be read, in parallel again, by the replica's own `read_records`.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from replica.notary.canonical import decode_request
from replica.notary.errors import BadRequest, InvariantBroken
from replica.notary.position import Position
from replica.notary.reading import read_records
from replica.notary.records import (
    FORMATS_KNOWN,
    BarrierRecord,
    Record,
    RequestRecord,
    Undecodable,
    decode_record,
    encode_record,
    record_digest,
)


class Opening(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A barrier, whether it comes into force or not."""

    offset: int
    barrier: BarrierRecord


class Run(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Records of one activation and format whose sequence numbers are start, start + 1, ... end - 1.

    `stamp_us`: the highest stamp among its requests, 0 if there is none. Void records may lie between them.
    """

    activation_id: bytes
    format: int
    start: int
    end: int
    stamp_us: int


class Survey(msgspec.Struct, frozen=True, array_like=True):
    """A stretch of the log: first and last offset, SHA-256 of the last record's bytes, barriers and runs in order."""

    first: int
    last: int
    last_digest: bytes
    parts: tuple[Opening | Run, ...]


class Surveyor:
    """Makes the survey of a stretch, record by record."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._last = -1
        self._value = b""
        self._parts: list[Opening | Run] = []
        self._run: tuple[bytes, int] | None = None  # activation and format of the run that is being collected
        self._start = self._end = self._stamp_us = 0

    def take(self, offset: int, value: bytes) -> None:
        """The next record. Raises InvariantBroken on a gap."""
        if self._first is None:
            self._first = offset
        elif offset != self._last + 1:
            raise InvariantBroken(f"the log goes from offset {self._last} to {offset}")
        self._last, self._value = offset, value
        record = _decode(value)
        if isinstance(record, BarrierRecord):
            self._end_run()
            self._parts.append(Opening(offset, record))
        elif record is not None:
            stamp_us = record.stamp_us if isinstance(record, RequestRecord) else 0
            if self._run != (record.activation_id, record.format) or record.sequence != self._end:
                self._end_run()
                self._run, self._start, self._stamp_us = (record.activation_id, record.format), record.sequence, 0
            self._end = record.sequence + 1
            self._stamp_us = max(self._stamp_us, stamp_us)

    def survey(self) -> Survey | None:
        """The survey of what was taken; None if nothing was."""
        self._end_run()
        if self._first is None:
            return None
        return Survey(self._first, self._last, record_digest(self._value), tuple(self._parts))

    def _end_run(self) -> None:
        if self._run is not None:
            self._parts.append(Run(*self._run, self._start, self._end, self._stamp_us))
            self._run = None


def survey_of(records: Iterable[tuple[int, bytes]]) -> Survey | None:
    """The survey of records (offset, value) without a gap; None if there is none."""
    surveyor = Surveyor()
    for offset, value in records:
        surveyor.take(offset, value)
    return surveyor.survey()


def advance(position: Position, survey: Survey) -> Position | None:
    """The position behind a stretch that follows `position`; None if only reading the stretch itself can tell.

    That is so when a run repeats numbers in part and has a stamp above all before it: which of its records has that
    stamp is not in the survey. Raises InvariantBroken on a gap, and FormatUnknown as `read_records` does.
    """
    if survey.first != position.offset + 1:
        raise InvariantBroken(f"the log goes from offset {position.offset} to {survey.first}")
    for part in survey.parts:
        following = _open(position, part) if isinstance(part, Opening) else _extend(position, part)
        if following is None:
            return None
        position = following
    return msgspec.structs.replace(position, offset=survey.last, digest=survey.last_digest)


def _open(position: Position, opening: Opening) -> Position:
    """The replica's own judgement of a barrier."""
    before = msgspec.structs.replace(position, offset=opening.offset - 1)
    return read_records(before, [(opening.offset, encode_record(opening.barrier))]).position


def _extend(position: Position, run: Run) -> Position | None:
    barrier = position.barrier
    if barrier is None or (barrier.activation_id, barrier.record_format) != (run.activation_id, run.format):
        return position
    overlap = sum(max(0, min(end, run.end) - max(start, run.start)) for start, end in position.seen)
    if overlap == run.end - run.start:
        return position
    if overlap and run.stamp_us > position.stamp_us:
        return None
    return msgspec.structs.replace(
        position,
        stamp_us=max(position.stamp_us, run.stamp_us),
        seen=_joined(position.seen, (run.start, run.end)),
    )


def _joined(ranges: tuple[tuple[int, int], ...], added: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """The ranges and one more: ascending, and none touches the next."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted((*ranges, added)):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return tuple(joined)


def _decode(value: bytes) -> Record | None:
    """The record in whichever known format it is, its request canonical; None for what is void anywhere."""
    for record_format in FORMATS_KNOWN:
        try:
            record = decode_record(value, record_format)
            if isinstance(record, RequestRecord):
                decode_request(record.submission.request)
            return record
        except (Undecodable, BadRequest):
            continue
    return None
