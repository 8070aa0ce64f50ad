"""The log on disk: segments of records, one of which is written to, and what opening them finds.

What holds, whenever a crash comes:

1. A segment exists as a whole or not at all: it gets its name once its header and the segment before are synced.
2. A cut is on disk before its place is written again.
3. An entry that was synced is found again, or its loss is detected: by a mark after it, by the segment after it, by its
   segment's seal, or because it was committed. Only damage to the last sync before a crash may pass for a torn write;
   a leader that got this node's acknowledgement detects it (`Expelled`).
4. A full segment is sealed once all of it is committed. A sealed segment never changes: damage is repaired with a
   peer's entries, if their Merkle root is the sealed one.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256

from ha.raft.core import LogIncomplete
from ha.raft.messages import Entry, HardState, Kind, TxId
from replica.log.raft.files import Files
from replica.log.raft.notes import UNFINISHED, Hard, Seal, decode_note, remove_unfinished, write_note
from replica.log.raft.records import (
    FILE_HEADER_BYTES,
    LANDMARK_EVERY,
    MARK_BYTES,
    NONCE_BYTES,
    FileHeader,
    Scan,
    Walk,
    decode_file_header,
    encode,
    encode_mark,
    root_of,
)
from replica.log.raft.tree import LogTree
from replica.notary.untrusted import UNREADABLE

HARD_STATE = "hard-state"
SEGMENT_BYTES = 64 * 2**20
SEGMENT_MAX_BYTES = 2**30
_SEGMENT, _SEAL = ".segment", ".seal"
_DIGITS = 20
_READ_AHEAD = 1_024  # entries at a time, when all are read
_CHUNK_BYTES = 2**20


def _numbers(values: Iterable[int] = ()) -> array[int]:
    return array("Q", values)


def segment_name(first_idx: int) -> str:
    """The file of the segment that begins with this entry."""
    return f"{first_idx:0{_DIGITS}}{_SEGMENT}"


@dataclass(slots=True)
class Segment:
    """One file. `landmarks`: where each 64th entry begins, and how many of this file's RAW entries are before it."""

    first_idx: int
    next_idx: int
    view: int  # of its last entry; 0: it has none
    end: int  # bytes that are written
    header: FileHeader | None  # None: damaged
    landmarks: array[int] = field(default_factory=_numbers)  # 8 bytes each, not 40: a log has many
    raw_before: array[int] = field(default_factory=_numbers)
    raw_count: int = 0
    seal: Seal | None = None

    @property
    def name(self) -> str:
        """The file's."""
        return segment_name(self.first_idx)

    @property
    def seal_name(self) -> str:
        """Of the file with its seal."""
        return f"{self.first_idx:0{_DIGITS}}{_SEAL}"

    def note(self, at: int, record_end: int, idx: int, view: int, kind: int) -> None:
        """An entry stands at the byte `at`."""
        if (idx - self.first_idx) % LANDMARK_EVERY == 0:
            self.landmarks.append(at)
            self.raw_before.append(self.raw_count)
        self.raw_count += kind == Kind.RAW
        self.next_idx, self.view, self.end = idx + 1, view, record_end

    def around(self, first: int, last: int) -> tuple[int, int, int]:
        """The bytes, from and to, that have the entries first..last, and the index that they begin with."""
        place = (first - self.first_idx) // LANDMARK_EVERY
        until = (last - self.first_idx) // LANDMARK_EVERY + 1
        to = self.landmarks[until] if until < len(self.landmarks) else self.end
        return self.landmarks[place], to, self.first_idx + place * LANDMARK_EVERY


@dataclass(slots=True)
class Job:
    """What one sync puts on disk, in this order."""

    hard_state: HardState | None = None
    steps: list[int | list[Entry]] = field(default_factory=list)  # a number cuts the log after it
    commit_idx: int = 0  # recorded, so that a later opening can check it


class SegmentLog:
    """The log of one node. One thread calls `carry_out`; `read` may be called by another, for what it has written."""

    def __init__(
        self, files: Files, segment_bytes: int = SEGMENT_BYTES, take: Callable[[Walk], None] = lambda _: None
    ) -> None:
        """Open a log. `take` gets what each sealed file has, in turn, unless it is damaged. Raises LogIncomplete,
        OSError, and what `take` raises."""
        self._files = files
        self._segment_bytes = segment_bytes
        self._take = take
        self._segments: list[Segment] = []
        self._firsts: list[int] = []
        self._commit_idx = 0
        self.hard_state = HardState(0, None, 0)
        self._open()

    # ------------------------------------------------------------------------------------------------------- opening

    def _open(self) -> None:
        """Read what the disk has. Raises LogIncomplete; then nothing was changed."""
        files = self._files
        names = files.names()
        seals = {int(name[:_DIGITS]): decode_note(files.read(name), Seal) for name in names if name.endswith(_SEAL)}
        firsts = {int(name[:_DIGITS]) for name in names if name.endswith(_SEGMENT)}
        sealed = {first: seal for first, seal in seals.items() if seal is not None}
        self._read_hard_state(is_there=HARD_STATE in names)
        order = sorted(firsts | sealed.keys())
        tail: Scan | None = None
        for first in order:
            if first != self.last_idx + 1:
                raise LogIncomplete(f"entries {self.last_idx + 1} to {first - 1} are missing")
            seal = sealed.get(first)
            if seal is not None:
                self._add(self._open_sealed(seal, is_there=first in firsts))
            else:
                tail = self._open_unsealed(first, is_last=first == order[-1])
        bound = max(self._commit_idx, self.hard_state.commit_idx)
        if self.last_idx < bound:
            raise LogIncomplete(f"the log ends at {self.last_idx}, but {bound} was committed")
        self._commit_idx = bound
        self.hard_state = self.hard_state._replace(commit_idx=bound)
        remove_unfinished(files)
        if tail is not None and order[-1] not in sealed:
            self._clear_tail(tail)

    def _read_hard_state(self, *, is_there: bool) -> None:
        hard = decode_note(self._files.read(HARD_STATE), Hard) if is_there else None
        if hard is None:
            raise LogIncomplete(f"{HARD_STATE} is {'damaged' if is_there else 'missing'}: a vote may be forgotten")
        self.hard_state = HardState(hard.view, hard.voted_for, hard.commit_idx)

    def _add(self, segment: Segment) -> None:
        self._segments.append(segment)
        self._firsts.append(segment.first_idx)

    def _open_sealed(self, seal: Seal, *, is_there: bool) -> Segment:
        """A sealed segment; without header if it is damaged and needs a peer's entries."""
        damaged = Segment(seal.first_idx, seal.last_idx + 1, 0, seal.size, None, seal=seal)
        self._commit_idx = max(self._commit_idx, seal.last_idx)
        walk = self._walk_sealed(seal) if is_there else None
        if walk is None:
            return damaged
        self._take(walk)
        return _walked(seal, walk)

    def _walk_sealed(self, seal: Seal) -> Walk | None:
        """What a sealed file has; None if that is not what was sealed."""
        name = segment_name(seal.first_idx)
        begin = self._files.read_at(name, 0, FILE_HEADER_BYTES)
        header = decode_file_header(begin)
        if header is None:
            return None
        digest, walk = sha256(begin), Walk(header)
        for at in range(FILE_HEADER_BYTES, seal.size, _CHUNK_BYTES):
            data = self._files.read_at(name, at, min(_CHUNK_BYTES, seal.size - at))
            digest.update(data)
            with suppress(*UNREADABLE):  # then the digest differs as well
                walk.feed(data)
        sound = digest.digest() == seal.file_digest and walk.next_idx == seal.last_idx + 1
        return walk if sound else None

    def _open_unsealed(self, first: int, *, is_last: bool) -> Scan:
        """A segment without a seal: whole, but for the end of the last one. Raises LogIncomplete."""
        name = segment_name(first)
        data = self._files.read(name)
        header = decode_file_header(data)
        if header is None or header.first_idx != first:
            raise LogIncomplete(f"{name} has no header that holds")
        segment, scan = _scanned(data, header)
        if not scan.rest_is_empty():
            scan.look_behind()
            if not is_last or scan.mark.synced_idx >= scan.next_idx:
                raise LogIncomplete(f"entry {scan.next_idx} in {name} is damaged, and was synced")
        self._commit_idx = max(self._commit_idx, scan.mark.commit_idx)
        self._add(segment)
        return scan

    def _clear_tail(self, scan: Scan) -> None:
        """Truncate what a crash left after the last whole record: it was never synced."""
        segment = self._segments[-1]
        if not scan.rest_is_empty():
            self._files.cut(segment.name, segment.end)
        self._files.reserve(segment.name, max(self._segment_bytes, segment.end))
        self._files.sync(segment.name)

    # --------------------------------------------------------------------------------------------------------- state

    @property
    def last_idx(self) -> int:
        """The end of what is written."""
        return self._segments[-1].next_idx - 1 if self._segments else 0

    @property
    def last(self) -> TxId:
        """The last entry that is written."""
        view = next((segment.view for segment in reversed(self._segments) if segment.view), 0)
        return TxId(view, self.last_idx)

    @property
    def damaged(self) -> list[Seal]:
        """Sealed segments whose entries must be fetched from a peer before this node may take part."""
        return [segment.seal for segment in self._segments if segment.header is None and segment.seal is not None]

    # ------------------------------------------------------------------------------------------------------- reading

    def read(self, first: int, last: int) -> list[Entry]:
        """The entries first..last, both included. Raises LogIncomplete if one is damaged or missing."""
        entries: list[Entry] = []
        while first <= last:
            segment = self._segments[max(bisect_right(self._firsts, first) - 1, 0)] if self._segments else None
            if segment is None or not segment.first_idx <= first < segment.next_idx:
                raise LogIncomplete(f"there is no entry {first}")
            until = min(last, segment.next_idx - 1)
            entries += self._read_segment(segment, first, until)
            first = until + 1
        return entries

    def _read_segment(self, segment: Segment, first: int, last: int) -> list[Entry]:
        if segment.header is None:
            raise LogIncomplete(f"{segment.name} is damaged")
        start, end, idx = segment.around(first, last)
        data = memoryview(self._files.read_at(segment.name, start, end - start))
        records = Scan(data, segment.header, at=0, next_idx=idx)
        try:
            entries = [record.entry() for _, record in records if first <= record.idx <= last]
        except UNREADABLE:
            entries = []
        if len(entries) != last - first + 1:
            raise LogIncomplete(f"an entry between {first} and {last} in {segment.name} is damaged")
        return entries

    def raw_upto(self, idx: int) -> int:
        """How many RAW entries there are up to `idx`, which is written."""
        count = 0
        for segment in self._segments:
            if segment.next_idx <= idx:
                count += segment.raw_count
            elif segment.first_idx <= idx:
                place = (idx - segment.first_idx) // LANDMARK_EVERY
                since = self.read(segment.first_idx + place * LANDMARK_EVERY, idx)
                return count + segment.raw_before[place] + sum(entry.kind is Kind.RAW for entry in since)
        return count

    def idx_of_raw(self, number: int, last_idx: int) -> int | None:
        """The index of the RAW entry after `number` others; None if it is not among those up to `last_idx`."""
        for segment in self._segments:
            if segment.first_idx > last_idx:
                break
            if number < segment.raw_count or segment is self._segments[-1]:
                return self._idx_in(segment, number, last_idx)
            number -= segment.raw_count
        return None

    def _idx_in(self, segment: Segment, number: int, last_idx: int) -> int | None:
        place = bisect_right(segment.raw_before, number) - 1
        first = segment.first_idx + place * LANDMARK_EVERY
        number -= segment.raw_before[place] if place >= 0 else 0
        for entry in self.read(first, min(first + LANDMARK_EVERY - 1, last_idx)) if place >= 0 else []:
            if entry.kind is Kind.RAW:
                if number == 0:
                    return entry.idx
                number -= 1
        return None

    def entries(self, first_idx: int = 1) -> Iterator[Entry]:
        """The log from an entry on."""
        last = self.last_idx
        for first in range(first_idx, last + 1, _READ_AHEAD):
            yield from self.read(first, min(first + _READ_AHEAD - 1, last))

    # ------------------------------------------------------------------------------------------------------- writing

    def carry_out(self, job: Job) -> TxId:
        """Write a job; all of it is on disk when this returns. Returns the end of the log. Raises OSError.

        After an error the content of the disk is unknown: the process must end, and open the log again.
        """
        self._commit_idx = max(self._commit_idx, job.commit_idx)
        if job.hard_state is not None:
            self._write_hard_state(job.hard_state)
        for step in job.steps:
            if isinstance(step, int):
                self._cut(step)
            else:
                self._append(step)
        if self._segments and any(not isinstance(step, int) for step in job.steps):
            self._files.sync(self._segments[-1].name)
            self._mark()
        return self.last

    def _write_hard_state(self, hard_state: HardState) -> None:
        self.hard_state = hard_state
        bound = min(max(self._commit_idx, hard_state.commit_idx), self.last_idx)
        write_note(self._files, HARD_STATE, Hard(hard_state.view, hard_state.voted_for, bound))

    def close(self) -> None:
        """Record how far the log was synced and committed, and close the files."""
        self._write_hard_state(self.hard_state)
        if self._segments and self._segments[-1].seal is None:
            self._mark()
            self._files.sync(self._segments[-1].name)
        self._files.close()

    def _append(self, entries: Sequence[Entry]) -> None:
        """Write entries, to a new segment if the last one is full."""
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.seal is not None or segment.header is None:
            segment = self._start_segment(entries[0].idx)
        assert segment.header is not None
        seed, begin = segment.header.seed, segment.end
        chunks: list[bytes] = []
        for entry in entries:
            record = encode(seed, entry)
            if segment.end + len(record) > self._segment_bytes:
                self._files.write(segment.name, begin, b"".join(chunks))
                segment = self._start_segment(entry.idx)
                assert segment.header is not None
                seed, begin, chunks = segment.header.seed, segment.end, []
                record = encode(seed, entry)
            chunks.append(record)
            segment.note(segment.end, segment.end + len(record), entry.idx, entry.view, entry.kind)
        self._files.write(segment.name, begin, b"".join(chunks))

    def _mark(self) -> None:
        """Mark that all so far is synced. The mark itself gets to disk with the next sync."""
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.header is None or segment.seal is not None:
            return
        if segment.end + MARK_BYTES <= self._segment_bytes:
            committed = min(self._commit_idx, self.last_idx)
            self._files.write(segment.name, segment.end, encode_mark(segment.header, self.last_idx, committed))
            segment.end += MARK_BYTES

    def _start_segment(self, first_idx: int) -> Segment:
        if self._segments and self._segments[-1].seal is None:
            self._files.sync(self._segments[-1].name)
        header = FileHeader(first_idx, os.urandom(NONCE_BYTES))
        segment = Segment(first_idx, first_idx, 0, FILE_HEADER_BYTES, header)
        self._write_file(segment.name, self._segment_bytes, header.encode())
        self._add(segment)
        return segment

    def _write_file(self, name: str, size: int, data: bytes) -> None:
        """Create a file with all of `data` and of this size, or none."""
        files, unfinished = self._files, name + UNFINISHED
        files.create(unfinished)
        files.reserve(unfinished, size)
        files.write(unfinished, 0, data)
        files.sync(unfinished)
        files.rename(unfinished, name)
        files.sync_names()

    def _cut(self, idx: int) -> None:
        """Remove all entries above `idx`, the newest segments first: a crash leaves a log without gaps."""
        segments, files = self._segments, self._files
        if idx >= self.last_idx:
            return
        if any(segment.seal is not None and segment.next_idx > idx + 1 for segment in segments):
            raise LogIncomplete(f"asked to cut after {idx}, which is sealed")
        while segments and segments[-1].first_idx > idx:
            files.remove(segments.pop().name)
            self._firsts.pop()
            files.sync_names()
        if segments and segments[-1].next_idx > idx + 1:
            self._cut_segment(segments[-1], idx)

    def _cut_segment(self, segment: Segment, idx: int) -> None:
        assert segment.header is not None
        start, end, first = segment.around(idx, idx)
        data = memoryview(self._files.read_at(segment.name, start, end - start))
        kept = [record for _, record in Scan(data, segment.header, at=0, next_idx=first) if record.idx <= idx]
        segment.next_idx, segment.view, segment.end = idx + 1, kept[-1].view, start + kept[-1].end
        place = (idx - segment.first_idx) // LANDMARK_EVERY
        segment.raw_count = segment.raw_before[place] + sum(record.kind == Kind.RAW for record in kept)
        del segment.landmarks[place + 1 :], segment.raw_before[place + 1 :]
        self._files.cut(segment.name, segment.end)
        self._files.sync(segment.name)
        self._files.reserve(segment.name, self._segment_bytes)

    # ------------------------------------------------------------------------------------------------------- sealing

    def to_seal(self, commit_idx: int) -> Segment | None:
        """The first full segment that may be sealed now. Sealing it may take another thread some time."""
        unsealed = next((segment for segment in self._segments[:-1] if segment.seal is None), None)
        return unsealed if unsealed is not None and unsealed.next_idx <= commit_idx + 1 else None

    def seal(self, segment: Segment) -> None:
        """Seal a segment that `to_seal` returned. Raises LogIncomplete if it is damaged."""
        assert segment.header is not None
        self._files.cut(segment.name, segment.end)
        self._files.sync(segment.name)
        digest, walk, tree = sha256(segment.header.encode()), Walk(segment.header), LogTree()
        for at in range(FILE_HEADER_BYTES, segment.end, _CHUNK_BYTES):  # in pieces: it is most of what a node has there
            data = self._files.read_at(segment.name, at, min(_CHUNK_BYTES, segment.end - at))
            digest.update(data)
            walk.feed(data)
            tree.grow(walk.leaves)
            walk.leaves.clear()  # they and the marks would be a fifth of the node's memory
            walk.marks.clear()
            tree.keep()
            tree.forget(tree.size)
        if (walk.end, walk.next_idx) != (segment.end, segment.next_idx):
            raise LogIncomplete(f"entry {walk.next_idx} in {segment.name} is damaged")
        self._seal(segment, digest.digest(), tree.root())

    def _seal(self, segment: Segment, digest: bytes, root: bytes) -> None:
        seal = Seal(segment.first_idx, segment.next_idx - 1, segment.end, digest, root)
        write_note(self._files, segment.seal_name, seal)
        segment.seal = seal

    def sealed_with(self, idx: int) -> Seal | None:
        """The seal of the sealed segment that has this entry, if it is not damaged."""
        place = bisect_right(self._firsts, idx) - 1
        segment = self._segments[place] if place >= 0 else None
        whole = segment is not None and segment.seal is not None and segment.header is not None
        return segment.seal if segment is not None and whole and idx < segment.next_idx else None

    def read_sealed(self, first_idx: int, at: int, size: int) -> bytes:
        """Bytes of a sealed segment's file; fewer at its end, none where there is no such segment."""
        seal = self.sealed_with(first_idx)
        if seal is None or seal.first_idx != first_idx:
            return b""
        return self._files.read_at(segment_name(first_idx), at, min(size, max(seal.size - at, 0)))

    def adopt(self, seal: Seal, walk: Walk) -> None:
        """Take a peer's sealed segment, the next one of this log, whose file is here, synced, as an unfinished one."""
        assert seal.first_idx == self.last_idx + 1
        segment = _walked(seal, walk)
        self._files.rename(segment.name + UNFINISHED, segment.name)
        self._files.sync_names()
        self._add(segment)
        self._seal(segment, seal.file_digest, seal.root)
        self.committed(seal.last_idx)

    def committed(self, idx: int) -> None:
        """Everything up to `idx`, which is written, is known to be committed."""
        self._commit_idx = max(self._commit_idx, idx)
        self.hard_state = self.hard_state._replace(commit_idx=max(self.hard_state.commit_idx, idx))

    def repair(self, seal: Seal, entries: Sequence[Entry]) -> bool:
        """Rewrite a damaged sealed segment from a peer's entries. False: they are not the sealed ones."""
        place = bisect_right(self._firsts, seal.first_idx) - 1
        if [entry.idx for entry in entries] != list(range(seal.first_idx, seal.last_idx + 1)):
            return False
        if root_of(entries) != seal.root:
            return False
        header = FileHeader(seal.first_idx, os.urandom(NONCE_BYTES))
        data = header.encode() + b"".join(encode(header.seed, entry) for entry in entries)
        segment, _ = _scanned(data, header)
        self._write_file(segment.name, len(data), data)
        self._seal(segment, sha256(data).digest(), seal.root)
        self._segments[place] = segment
        return True


def _walked(seal: Seal, walk: Walk) -> Segment:
    """A sealed segment as its file was read."""
    *raw_before, raw_count = walk.raw_before()
    return Segment(
        first_idx=seal.first_idx,
        next_idx=seal.last_idx + 1,
        view=walk.view,
        end=seal.size,
        header=walk.header,
        landmarks=_numbers(walk.landmarks),
        raw_before=_numbers(raw_before),
        raw_count=raw_count,
        seal=seal,
    )


def _scanned(data: bytes, header: FileHeader) -> tuple[Segment, Scan]:
    """A segment with its landmarks, and the scan that found them."""
    segment = Segment(header.first_idx, header.first_idx, 0, FILE_HEADER_BYTES, header)
    scan = Scan(memoryview(data), header)
    for at, record in scan:
        segment.note(at, record.end, record.idx, record.view, record.kind)
    segment.end = scan.end
    return segment, scan


def fresh(files: Files) -> None:
    """Make an empty folder a log's: from now on a missing hard state means a loss."""
    write_note(files, HARD_STATE, Hard(0, None, 0))
