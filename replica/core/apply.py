"""Applies the log to the index: void rule, rules and write batch, one run of records at a time."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain

import msgspec

from replica.index.interface import Index
from replica.log.interface import LogRecords
from replica.notary.position import Position, begin
from replica.notary.reading import Counted, CountedRequest, Reading, read_records
from replica.notary.rules import Verdict, judge, keys_of


class Applied(msgspec.Struct):
    """What a run of records amounted to. `verdicts` has one entry per counted record, None for a settlement."""

    reading: Reading
    verdicts: list[Verdict | None]

    @property
    def position(self) -> Position:
        """The position behind the run."""
        return self.reading.position

    def decided(self) -> Iterator[tuple[Counted, Verdict | None]]:
        """What counted, in log order, with the verdict of each request."""
        return zip(self.reading.counted, self.verdicts, strict=True)


def judge_records(index: Index, position: Position, records: LogRecords) -> tuple[Applied, dict[bytes, bytes]]:
    """Read and judge the records behind `position`, without changing anything; also the index entries to add.

    The index may be newer than the position: what it recorded at or behind a request's own offset does not count.
    """
    reading = read_records(position, records)
    requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
    keys = [keys_of(entry) for entry in requests]
    known = index.lookup(list(chain.from_iterable(keys))) if keys else []
    of_requests, added = judge(requests, keys, known)
    if len(requests) == len(reading.counted):
        return Applied(reading, list(of_requests)), added
    verdicts = iter(of_requests)
    return Applied(reading, [next(verdicts) if isinstance(e, CountedRequest) else None for e in reading.counted]), added


class Applier:
    """The index of one replica and how far the log is applied to it. The position never goes back."""

    def __init__(self, index: Index, topic_id: str) -> None:
        self.index = index
        self.position = index.position() or begin(topic_id)

    def apply(self, records: LogRecords) -> Applied:
        """Judge the next records and write entries and position in one batch.

        Raises IndexUnreadable when the index fails, InvariantBroken on a gap, FormatUnknown for a newer log.
        """
        applied, added = judge_records(self.index, self.position, records)
        self.index.write(added, applied.position)
        self.position = applied.position
        return applied
