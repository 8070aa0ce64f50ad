"""The request log as the server of a lease: what was read of it, and the records that claim and keep the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, TypeVar

from ha.errors import LockLost
from ha.lock.interface import ReleaseNote
from ha.lock.silence import LeaseView
from replica.following.follower import Follower
from replica.log.interface import ConsensusLog, Lifeline, LogEnd, LogWriter, RequestLog, TimedLog, WatchingLog
from replica.notary.errors import NotaryError
from replica.notary.formats import Formats, to_write
from replica.notary.granters import NOTHING_WITNESSED, Claim, Release
from replica.notary.leases import SIGNS_OF_LIFE_FROM
from replica.notary.position import BEGIN, Position
from replica.notary.records import ACTIVATION_ID_BYTES, BarrierRecord, Record, SignOfLifeRecord, encode_record

ResultT = TypeVar("ResultT")


class FollowedLease:
    """See LeaseLog. One object serves one session."""

    def __init__(
        self,
        request_log: RequestLog,
        follower: Follower,
        random_bytes: Callable[[int], bytes],
        now_us: Callable[[], int],
        raised: Callable[[], Awaitable[Formats]],
    ) -> None:
        """`now_us`: the time. `raised`: the formats that operators have raised, all that were before the call. Raises
        NotaryError."""
        self._log = request_log
        self._follower = follower
        self._random_bytes = random_bytes
        self._now_us = now_us
        self._raised = raised
        self._writer: LogWriter | None = None
        self._holder = HolderWatch(request_log, follower.look_again)
        self._told = LogEnd(BEGIN, None)  # where the log ended, when that was last asked
        self._lifeline: Lifeline | None = None  # of a claim of ours
        self._ended = False
        self._closing: set[asyncio.Task[None]] = set()

    def view(self) -> LeaseView | None:
        """See LeaseLog."""
        position = self._follower.position
        if position is None:
            return None
        view, told = view_at(position), self._told
        return replace(
            view,
            holder_ended=view.holder is not None and view.activation_id == self._holder.ended_id,
            quiet_s=(told.quiet_s or 0.0) if position.offset == told.offset - 1 else 0.0,
        )

    async def moved(self) -> None:
        """See LeaseLog."""
        before, ended_id = self._follower.position, self._holder.ended_id
        if before is not None and self._lifeline is None and not self._ended:
            self._holder.watch(view_at(before))

        def has_news(position: Position) -> bool:
            return position is not before or self._holder.ended_id != ended_id

        await self._follower.wait_for(has_news)

    async def catch_up(self) -> None:
        """See LeaseLog."""
        if isinstance(self._log, TimedLog):
            told = self._told = await _asked(self._log.end_and_quiet())
        else:
            told = LogEnd(await _asked(self._log.end_offset()), None)
        await self._follower.wait_for(lambda position: position.offset >= told.offset - 1)

    async def confirm_end(self) -> None:
        """See LeaseLog. A majority of log nodes confirms its end; any other log must take and return a record.

        That record is a copy of the barrier in force, which changes nothing for any reader.
        """
        position = self._follower.position
        if position is None or position.barrier is None or isinstance(self._log, ConsensusLog):
            await self.catch_up()
            return
        end = await _asked(self._log.end_offset())
        await self._append(position.barrier)
        await self._follower.wait_for(lambda position: position.offset >= end)

    async def claim(self, name: str, view: LeaseView) -> bytes | None:
        """See LeaseLog."""
        activation_id = self._random_bytes(ACTIVATION_ID_BYTES)
        if isinstance(self._log, WatchingLog):
            self._lifeline = self._log.tie(activation_id)
        claim = Claim(view.witnessed)
        formats = await self._to_claim()
        await self._append(BarrierRecord(view.epoch + 1, activation_id, name, claim, formats.records, formats.rules))
        # once the lease looks different, the claim is in force, or void wherever it will be read
        position = await self._follower.wait_for(lambda position: not _is_as_in(position, view))
        return activation_id if _in_force(position) == activation_id else None

    async def show_life(self, activation_id: bytes, number: int) -> bool:
        """See LeaseLog."""
        sequence = SIGNS_OF_LIFE_FROM + number
        await self._append(SignOfLifeRecord(self._in_log().records, activation_id, sequence, self._now_us()))

        def read_or_over(position: Position) -> bool:
            return _in_force(position) != activation_id or has_seen(position, sequence)

        return _in_force(await self._follower.wait_for(read_or_over)) == activation_id

    async def release(self, view: LeaseView, note: ReleaseNote | None) -> None:
        """See LeaseLog. The activation id is thrown away, so that nobody can use it."""
        release = Release("" if note is None else note.by)
        to = "" if note is None or note.to is None else note.to
        nobody, formats = self._random_bytes(ACTIVATION_ID_BYTES), self._in_log()
        await self._append(BarrierRecord(view.epoch + 1, nobody, to, release, formats.records, formats.rules))
        await self._follower.wait_for(lambda position: position.epoch > view.epoch)

    def end(self) -> None:
        """See LeaseLog."""
        self._ended = True
        self._holder.stop()
        for opened in (self._lifeline, self._writer):
            if opened is not None:
                closing = asyncio.create_task(opened.close(), name="lease log closing")
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)

    async def _to_claim(self) -> Formats:
        """What a claim names now. Raises LockLost where that is not known, or not to this release."""
        try:
            return to_write(await self._raised(), self._in_log())
        except NotaryError as error:
            raise LockLost(error.detail) from error

    def _in_log(self) -> Formats:
        """The newest that barriers name, as far as was read: none of ours may name older ones."""
        return Formats().raised(self._follower.formats)

    async def _append(self, record: Record) -> None:
        if self._writer is None:
            opening = self._log.open_shared_writer if isinstance(self._log, WatchingLog) else self._log.open_writer
            self._writer = await _asked(opening())
            if self._ended:
                self.end()
            await _asked(self._follower.reread())  # the writer may have reached another server
        if not self._follower.assured:
            raise LockLost("the log is opened anew, and its newest record is to be found first")
        try:
            self._writer.append(encode_record(record))
        except NotaryError as error:
            raise LockLost(error.detail) from error


class HolderWatch:
    """Watches the process of the replica that holds the lease, where the log's servers see such processes end."""

    def __init__(self, request_log: RequestLog, on_ended: Callable[[], None]) -> None:
        self._log = request_log if isinstance(request_log, WatchingLog) else None
        self._on_ended = on_ended
        self._activation_id = b""
        self.ended_id: bytes | None = None  # of the activation whose process was seen to end
        self._watching: asyncio.Task[None] | None = None

    def watch(self, view: LeaseView) -> None:
        """Watch its holder from now on, and no other."""
        if self._log is None or view.activation_id == self._activation_id:
            return
        self.stop()
        self._activation_id = view.activation_id
        if view.holder is not None:
            self._watching = asyncio.create_task(self._watch(self._log), name="lease holder")

    def stop(self) -> None:
        """Watch nobody. May be repeated."""
        if self._watching is not None:
            self._watching.cancel()
        self._watching = None

    async def _watch(self, log: WatchingLog) -> None:
        await log.wait_for_end(self._activation_id)
        self.ended_id = self._activation_id
        self._on_ended()


def view_at(position: Position) -> LeaseView:
    """The lease at a position."""
    barrier = position.barrier
    if barrier is None:
        return LeaseView(position.topic_id, 0, b"", None, None, NOTHING_WITNESSED)
    release = barrier.granter if isinstance(barrier.granter, Release) else None
    note = ReleaseNote(release.by, barrier.replica or None) if release is not None and release.by else None
    return LeaseView(
        position.topic_id,
        barrier.epoch,
        barrier.activation_id,
        barrier.replica if release is None else None,
        note,
        position.counted_offset,
    )


def has_seen(position: Position, sequence: int) -> bool:
    """Whether the record with this number of the activation in force was read."""
    return any(start <= sequence < end for start, end in position.seen)


def _is_as_in(position: Position, view: LeaseView) -> bool:
    return position.epoch == view.epoch and position.counted_offset == view.witnessed


def _in_force(position: Position) -> bytes | None:
    return None if position.barrier is None else position.barrier.activation_id


async def _asked(question: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Its answer. Raises LockLost where the log has none."""
    try:
        return await question
    except NotaryError as error:
        raise LockLost(error.detail) from error
