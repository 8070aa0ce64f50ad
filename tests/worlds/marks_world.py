"""Marks and logs for tests of marks."""

from __future__ import annotations

import msgspec

from replica.notary.granters import Database
from replica.notary.marks import mark_of
from replica.notary.position import Position, begin
from replica.notary.reading import read_records
from replica.notary.records import FORMAT, BarrierRecord, encode_record

LOG_ID = "memory-1"


def barrier(epoch: int = 1, replica: str = "R1", marker: int = 0) -> BarrierRecord:
    """A barrier; `marker` makes its activation another one."""
    return BarrierRecord(epoch, bytes([marker]) * 16, replica, Database("memory", "1", 1), FORMAT, 3)


def log_of(end: int, *, marker: int = 0, fork: int | None = None) -> list[bytes]:
    """A log of so many records, the first of which is a barrier. From `fork` on it has other records."""
    values = [encode_record(barrier(marker=marker))]
    for offset in range(1, end):
        forked = fork is not None and offset >= fork
        values.append(f"no record {offset} {marker} {forked}".encode())
    return values


def mark(offset: int, values: list[bytes] | None = None, log_id: str = LOG_ID) -> Position:
    """The mark of a reader that read the log so far."""
    records = list(enumerate((values or log_of(offset + 1))[: offset + 1]))
    return mark_of(read_records(begin(log_id), records).position)


def other(position: Position) -> Position:
    """The same mark with another record at its offset."""
    return msgspec.structs.replace(position, digest=b"\xee" * 32)
