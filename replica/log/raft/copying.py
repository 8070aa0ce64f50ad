"""A new node copies whole sealed segments from its peers. Entries one by one cost several times as much.

No peer is trusted with the content. The first entry must be the leader's. A file must have its seal's SHA-256, each
record its CRC, and the entries must lead to the roots that leaders signed, under keys that the log named before. What
is sealed is committed: that is a peer's word, as the commit is a leader's.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import asynccontextmanager
from hashlib import sha256
from multiprocessing import get_context

import structlog

from ha.raft.messages import Entry
from replica.log.raft.client import CallFailed, LogClient
from replica.log.raft.files import Files
from replica.log.raft.notes import UNFINISHED, Seal, remove_unfinished
from replica.log.raft.opening import Opened
from replica.log.raft.records import FILE_HEADER_BYTES, Scan, Walk, decode_file_header, leaf_of_entry, merkle_root
from replica.log.raft.segments import SEGMENT_MAX_BYTES, Job, segment_name
from replica.log.raft.settings import LogNodeSettings
from replica.log.raft.signing import LogDiffers
from replica.log.raft.wire import PIECE_MAX_BYTES
from replica.notary.errors import LogUnavailable
from replica.notary.own_process import safe_children
from replica.notary.tasks import cancelled
from replica.notary.untrusted import UNREADABLE

_log = structlog.get_logger(__name__)
_PIECES_OPEN = 4
_TAKEN_TOGETHER = 2  # segments that are fetched, and being verified
_WALK_BYTES = 2**22


class SegmentRefused(Exception):
    """A peer's segment is damaged, or not of this log: another peer may have it."""


async def copy_segments(settings: LogNodeSettings, files: Files, opened: Opened, leader: str) -> None:
    """Copy all that peers have sealed after the end of this log, which is committed.

    The followers are asked before the leader, which has other work. Raises OSError.
    """
    before = opened.log.last_idx
    try:
        async with _client(settings, leader) as client:
            first, _ = await client.read(1, 1)
    except (LogUnavailable, CallFailed):
        first = []
    names = sorted(settings.peers, key=lambda name: (name == leader, name)) if first else []
    with safe_children(), ProcessPoolExecutor(1, get_context("spawn")) as walker:
        while names:  # until nobody has more: the log grows meanwhile
            at_idx = opened.log.last_idx
            for name in list(names):
                try:
                    async with _client(settings, name) as client:
                        await _Copy(files, opened, first[0], client, settings.hello_max_s, walker=walker).run()
                except (LogUnavailable, CallFailed) as error:
                    _log.warning("log_copy_interrupted", peer=name, why=str(error))
                    names.remove(name)
                except SegmentRefused as error:
                    _log.error("log_segment_refused", peer=name, why=str(error))
                    names.remove(name)
            if opened.log.last_idx == at_idx:
                break
    opened.signed.extended()
    remove_unfinished(files)
    _log.info("log_segments_copied", entries=opened.log.last_idx - before, last_idx=opened.log.last_idx)


@asynccontextmanager
async def _client(settings: LogNodeSettings, name: str) -> AsyncIterator[LogClient]:
    tls = None if settings.tls is None else settings.tls.contexts()[1]
    client = await LogClient.connect(settings.peers[name], settings.group, tls, answer_max_s=settings.hello_max_s)
    try:
        yield client
    except TimeoutError:
        raise LogUnavailable(f"{name} does not answer") from None
    finally:
        await client.close()


class _Copy:
    """What one peer has sealed. While one file is verified and synced, the next one is fetched."""

    def __init__(
        self,
        files: Files,
        opened: Opened,
        first: Entry,
        client: LogClient,
        answer_max_s: float,
        *,
        walker: Executor | None = None,
    ) -> None:
        """`walker`: where files are read and hashed, a process of its own if it can be: that is most of the work."""
        self._walker = walker
        self._files = files
        self._opened = opened
        self._first = first
        self._client = client
        self._answer_max_s = answer_max_s

    async def run(self) -> None:
        """Copy until the peer has no more. Raises LogUnavailable, CallFailed, SegmentRefused, TimeoutError, OSError."""
        next_idx = self._opened.log.last_idx + 1
        taking: deque[asyncio.Task[None]] = deque()
        try:
            while (seal := await self._worth_while(next_idx)) is not None:
                await self._fetch(seal)
                while len(taking) >= _TAKEN_TOGETHER:
                    await taking.popleft()
                before = taking[-1] if taking else None
                taking.append(asyncio.create_task(self._take(seal, next_idx, before), name="segment"))
                next_idx = seal.last_idx + 1
        finally:
            results = await asyncio.gather(*taking, return_exceptions=True)
        for result in results:
            if result is not None:
                raise result

    async def _worth_while(self, idx: int) -> Seal | None:
        """The segment with this entry; None also where it brings little, and nothing follows it."""
        seal = await self._find(idx)
        if seal is not None and seal.last_idx - idx < idx - seal.first_idx and not await self._find(seal.last_idx + 1):
            return None
        return seal

    async def _find(self, idx: int) -> Seal | None:
        async with asyncio.timeout(self._answer_max_s):
            seal = await self._client.find_sealed(idx)
        if seal is None or (seal.first_idx <= idx <= seal.last_idx and 0 < seal.size <= SEGMENT_MAX_BYTES):
            return seal
        raise SegmentRefused(f"asked for entry {idx}, it offers {seal.first_idx} to {seal.last_idx}")

    async def _fetch(self, seal: Seal) -> None:
        """The peer's file beside ours, under the name of an unfinished one; several pieces are under way at a time."""
        name, digest, at = _unfinished(seal), sha256(), 0
        self._files.create(name)
        pieces: deque[asyncio.Task[bytes]] = deque()
        starts = iter(range(0, seal.size, PIECE_MAX_BYTES))
        try:
            while at < seal.size:
                while len(pieces) < _PIECES_OPEN and (start := next(starts, None)) is not None:
                    size = min(PIECE_MAX_BYTES, seal.size - start)
                    pieces.append(asyncio.create_task(self._client.read_sealed(seal.first_idx, start, size)))
                async with asyncio.timeout(self._answer_max_s):
                    data = await pieces[0]
                pieces.popleft()
                if len(data) != min(PIECE_MAX_BYTES, seal.size - at):
                    raise SegmentRefused(f"{len(data)} bytes at {at} of a file of {seal.size}")
                self._files.write(name, at, data)
                digest.update(data)
                at += len(data)
        finally:
            await cancelled(*pieces)
        if digest.digest() != seal.file_digest:
            raise SegmentRefused(f"the file from entry {seal.first_idx} on has another SHA-256 than its seal")

    async def _take(self, seal: Seal, next_idx: int, before: asyncio.Task[None] | None) -> None:
        loop = asyncio.get_running_loop()
        walking = loop.run_in_executor(self._walker, walk_file, self._files, seal)
        walk, _ = await asyncio.gather(walking, asyncio.to_thread(self._files.sync, _unfinished(seal)))
        if before is not None:
            await before
        self._verify(seal, walk, next_idx)
        self._adopt(seal, walk, next_idx)

    def _verify(self, seal: Seal, walk: Walk, next_idx: int) -> None:
        """Grow the log's tree by the entries from `next_idx` on. Raises SegmentRefused; then it is as before."""
        known = next_idx - seal.first_idx
        if seal.first_idx == 1 and walk.leaves[:1] != [leaf_of_entry(self._first)]:
            raise SegmentRefused("it begins with another entry than the leader's log")
        try:
            self._opened.signed.extend(walk.leaves[known:], [each for each in walk.marks if each.idx >= next_idx])
        except LogDiffers as error:
            raise SegmentRefused(error.detail) from None

    def _adopt(self, seal: Seal, walk: Walk, next_idx: int) -> None:
        """Make a verified file part of the log; of one that overlaps, only its new entries."""
        opened, files = self._opened, self._files
        if seal.first_idx == next_idx:
            opened.log.adopt(seal, walk)
        else:
            records = Scan(memoryview(files.read_at(_unfinished(seal), 0, seal.size)), walk.header)
            entries = [record.entry() for _, record in records if record.idx >= next_idx]
            opened.log.carry_out(Job(None, [entries], seal.last_idx))
            opened.log.committed(seal.last_idx)
        opened.signed.committed(seal.last_idx)
        opened.shape.add_walk(walk, next_idx)
        opened.words.add_walk(walk, next_idx)


def walk_file(files: Files, seal: Seal) -> Walk:
    """A copied file, read and checked by itself. Raises SegmentRefused."""
    name = _unfinished(seal)
    header = decode_file_header(files.read_at(name, 0, FILE_HEADER_BYTES))
    if header is None or header.first_idx != seal.first_idx:
        raise SegmentRefused(f"the file from entry {seal.first_idx} on has no header that holds")
    walk = Walk(header)
    try:
        for at in range(FILE_HEADER_BYTES, seal.size, _WALK_BYTES):
            walk.feed(files.read_at(name, at, min(_WALK_BYTES, seal.size - at)))
    except UNREADABLE as error:
        raise SegmentRefused(f"entry {walk.next_idx} cannot be read: {error}") from None
    if (walk.end, walk.next_idx) != (seal.size, seal.last_idx + 1):
        raise SegmentRefused(f"entry {walk.next_idx} is damaged")
    if merkle_root(walk.leaves) != seal.root:
        raise SegmentRefused(f"the entries from {seal.first_idx} on have another Merkle root than their seal")
    return walk


def _unfinished(seal: Seal) -> str:
    return segment_name(seal.first_idx) + UNFINISHED
