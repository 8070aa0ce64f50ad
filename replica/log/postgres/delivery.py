"""Which of the records that a server showed a reader may return. Pure.

Postgres shows commits that no standby has: after a restart of the primary, when a backend that waits for the standby is
ended, and when `synchronous_standby_names` is emptied. A promotion loses these commits, so nobody may have acted on
them. Hence a check of our own: a reader holds what a look showed until enough standbys have on disk the WAL up to the
server's position at that look. Every commit in the look's snapshot ends at that position or before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from replica.log.interface import LogRecords
from replica.notary.errors import LogRefused, LogTruncated


@dataclass(frozen=True, slots=True)
class Batch:
    """The records of one append statement. A null record is None."""

    first_offset: int
    next_offset: int
    records: Sequence[bytes | None]


@dataclass(frozen=True, slots=True)
class Look:
    """What one statement showed of the log. Positions are bytes of WAL since the server was created."""

    log_id: str
    end_offset: int  # the head's end: appended and visible, perhaps not replicated
    position: int  # on the server's disk after the snapshot was taken
    flushed: int | None  # on the disks of the required number of standbys; None: of fewer, or not asked
    batches: Sequence[Batch]


@dataclass(frozen=True, slots=True)
class Appended:
    """The answer to an append: its first offset, and both positions as in a look that was made after its commit."""

    first_offset: int
    position: int
    flushed: int | None

    def look(self, log_id: str, records: Sequence[bytes]) -> Look:
        """What a look at that moment would have shown of this batch."""
        end = self.first_offset + len(records)
        return Look(log_id, end, self.position, self.flushed, [Batch(self.first_offset, end, records)])


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the log begins and ends: the head, and the batches in the same snapshot."""

    log_id: str
    end_offset: int
    position: int
    first_offset: int | None  # of the oldest batch; None: there is none
    batches_end: int | None  # where the newest batch ends
    batch_offset: int | None  # first offset of the batch with the requested offset, or of the newest before it
    partition_records: int

    @property
    def first(self) -> int:
        """The first offset that can be read; if there is none, the end."""
        return self.end_offset if self.first_offset is None else self.first_offset

    def require_whole(self) -> None:
        """Raise LogTruncated when the newest batches are gone, LogRefused when the head was set back."""
        end = self.batches_end or 0
        if end < self.end_offset:
            raise LogTruncated(f"the log's head says offset {self.end_offset}, its batches end at {end}")
        if end > self.end_offset:
            raise LogRefused(f"the log's head says offset {self.end_offset}, but its batches go on to {end}")

    def require_offset(self, offset: int) -> None:
        """Raise LogTruncated unless a reader may start there."""
        if not self.first <= offset <= self.end_offset:
            raise LogTruncated(
                f"the log has offsets from {self.first} to below {self.end_offset}, asked for is {offset}"
            )

    def first_batch(self, start_offset: int) -> int:
        """The first batch for a reader that starts at an existing offset, or at the end."""
        if start_offset == self.end_offset or self.batch_offset is None:
            return start_offset
        return self.batch_offset


class Delivery:
    """Batches that one reader has seen and not yet returned, in order and without a gap."""

    def __init__(self, start_offset: int, first_batch: int) -> None:
        """`first_batch`: the first offset of the batch that has `start_offset`."""
        self._start = start_offset
        self._held: deque[tuple[int, Batch]] = deque()  # each with the WAL position of the look that showed it
        self._ready: deque[tuple[int, bytes]] = deque()
        self.next_batch = first_batch
        self.held_bytes = 0
        self.ready_bytes = 0

    @property
    def holds(self) -> bool:
        """Whether it holds batches that are not known to be replicated."""
        return bool(self._held)

    @property
    def ready(self) -> bool:
        """Whether `take` has records to return."""
        return bool(self._ready)

    def see(self, look: Look) -> None:
        """Hold what a look shows from `next_batch` on.

        Raises LogTruncated when records are missing that were there or must exist, LogRefused when head and batches
        differ.
        """
        if look.end_offset < max(self._start, self.next_batch):
            raise LogTruncated(f"the log ends at offset {look.end_offset}; {self.next_batch} is next")
        for batch in look.batches:
            self._require_next(batch, look.end_offset)
            self._held.append((look.position, batch))
            self.held_bytes += sum(map(len, filter(None, batch.records)))
            self.next_batch = batch.next_offset
        if not look.batches and look.end_offset > self.next_batch:
            raise LogTruncated(f"the log goes to offset {look.end_offset}, but it has no offset {self.next_batch}")

    def release(self, flushed: int | None) -> None:
        """Enough standbys have the WAL up to `flushed` on disk: release what was seen up to that position."""
        while self._held and flushed is not None and self._held[0][0] <= flushed:
            _, batch = self._held.popleft()
            size = sum(map(len, filter(None, batch.records)))
            self.held_bytes -= size
            self.ready_bytes += size
            skipped = max(0, self._start - batch.first_offset)
            records = islice(batch.records, skipped, None)
            self._ready.extend(
                (offset, value or b"") for offset, value in enumerate(records, batch.first_offset + skipped)
            )

    def take(self, max_records: int) -> LogRecords:
        """The next records that may be returned."""
        taken = [self._ready.popleft() for _ in range(min(max_records, len(self._ready)))]
        self.ready_bytes = self.ready_bytes - sum(len(value) for _, value in taken) if self._ready else 0
        return taken

    def _require_next(self, batch: Batch, end_offset: int) -> None:
        if batch.first_offset != self.next_batch:
            raise LogTruncated(
                f"the log no longer has offset {self.next_batch}: it goes on at offset {batch.first_offset}"
            )
        if batch.next_offset > end_offset or batch.next_offset != batch.first_offset + len(batch.records):
            raise LogRefused(
                f"the log's head says offset {end_offset}, but a batch goes from {batch.first_offset} to below "
                f"{batch.next_offset} with {len(batch.records)} records"
            )
