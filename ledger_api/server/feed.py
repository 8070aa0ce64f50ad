"""Completions and updates from a ledger offset on: what is published, in order, live at the end.

The core says over the link how far completions are published; the rows come from the database, over a connection of
this front end that cannot write. The newest rows are kept, rendered once for all who follow. Nothing is asked of the
database while nothing new is published or nobody follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager
from typing import cast

import msgspec

from ledger_api.server.entitlement import Caller, may_see, may_see_parties, parties_shown
from ledger_api.server.room import Held, Room
from ledger_api.wire.answers import NOTARISED
from ledger_api.wire.feed import CheckpointDocument, CompletionDocument, UpdateDocument
from ledger_api.wire.problems import ConflictDocument
from ledger_api.wire.submissions import DeduplicationDocument
from replica.link.interface import CoreLink, Standing, refuse_as_passive
from replica.notary.answers import StateStatus
from replica.notary.errors import Code, NotaryError, StoreUnavailable
from replica.notary.requests import format_state_ref
from replica.notary.rules import Conflict
from replica.notary.texts import format_time
from replica.store.interface import Completion
from replica.store.reader import WINDOW_DETAIL_BYTES, CompletionReader, Row, Scan

BATCH_ROWS = 500
TAIL_ROWS = 8_000
TAIL_BYTES = 24_000_000  # of those rows and what is rendered of them
WINDOW_BYTES = 512 * 1024  # of the lines that a stream is given at a time, unless one alone is longer
LINE_MAX_BYTES = 2_500_000  # a conflict of 9,999 states has 1.9 MB
ROOM_WAIT_MAX_S = 5.0  # how long a stream waits while others hold all the room there is
PAGE_READ_BYTES = 32_000_000  # of details that one page looks through, whatever it has of them
SCAN_ROWS, SCAN_S = 20_000, 1.0  # a call for attempts searches no further, and begins no question later
_ANSWERS_BYTES = 128 * 2**20
_ROW_BYTES = 1_500
_WAIT_MIN_S = 0.001  # what is left of a silence may round to nothing, and no time would pass
_encoder = msgspec.json.Encoder()
_conflicts = msgspec.msgpack.Decoder(tuple[Conflict, ...])


class FeedRefused(NotaryError):
    """What was asked for cannot be served, or not any longer; `standing` was the core's word at that moment."""

    def __init__(self, code: Code, detail: str, standing: Standing) -> None:
        super().__init__(detail, code)
        self.standing = standing


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader asks for: updates or completions, of one user or of all, of some parties or of all.

    `holder`: who answers for what is held for him meanwhile.
    """

    updates: bool = False
    user_id: str | None = None
    parties: frozenset[str] | None = None
    caller: Caller
    holder: Hashable = None


class Line(msgspec.Struct, frozen=True):
    """One document of a stream: its offset, its kind, and its JSON."""

    offset: int
    kind: str
    json: bytes


class Entry:
    """A completion at its ledger offset; its documents are made once, when somebody wants them.

    For whoever may not be told of all its parties they are made anew, but not the conflicts, which are most of it.
    """

    __slots__ = ("_completion_line", "_conflicts", "_update_line", "completion", "offset")

    def __init__(self, offset: int, completion: Completion) -> None:
        self.offset = offset
        self.completion = completion
        self._completion_line: Line | None = None
        self._conflicts: msgspec.Raw | None = None
        self._update_line: Line | None = None

    def line(self, wanted: Wanted) -> Line | None:
        """What a reader is told of it; None when it is not for him."""
        completion = self.completion
        act_as = completion.act_as
        if wanted.parties is not None and wanted.parties.isdisjoint(parties_shown(wanted.caller, act_as)):
            return None
        if wanted.updates:
            return self._as_update(wanted.caller) if may_see_parties(wanted.caller, act_as) else None
        if wanted.user_id is not None and wanted.user_id != completion.user_id:
            return None
        return self._as_completion(wanted.caller) if may_see(wanted.caller, completion.user_id, act_as) else None

    def _as_completion(self, caller: Caller) -> Line:
        shown = parties_shown(caller, self.completion.act_as)
        if shown is not self.completion.act_as:
            return self._completion(shown)
        if self._completion_line is None:
            self._completion_line = self._completion(shown)
        return self._completion_line

    def _completion(self, parties: tuple[str, ...]) -> Line:
        document = completion_document(self.offset, self.completion, parties, self._conflicts)
        if self.completion.detail and self._conflicts is None and parties is not self.completion.act_as:
            self._conflicts = msgspec.Raw(_encoder.encode(document.conflicts))
        return Line(self.offset, "completion", _encoder.encode(document))

    def _as_update(self, caller: Caller) -> Line | None:
        completion = self.completion
        if completion.notarised_offset != completion.log_offset:
            return None  # refused, or notarised by an earlier record
        shown = parties_shown(caller, completion.act_as)
        if shown is not completion.act_as:
            return self._update(shown)
        if self._update_line is None:
            self._update_line = self._update(shown)
        return self._update_line

    def _update(self, parties: tuple[str, ...]) -> Line:
        return Line(self.offset, "update", _encoder.encode(update_document(self.offset, self.completion, parties)))


def completion_document(
    offset: int, completion: Completion, parties: tuple[str, ...], conflicts_json: msgspec.Raw | None = None
) -> CompletionDocument:
    """The document of a completion, a function of the row and of those of its parties that are shown.

    `conflicts_json`: its conflicts, if they are rendered already.
    """
    if conflicts_json is None:
        found = _conflicts.decode(completion.detail) if completion.detail else ()
        conflicts = [ConflictDocument(format_state_ref(c.state), c.consumed_by_hash.hex(), c.usage) for c in found]
    else:
        conflicts = cast(list[ConflictDocument], conflicts_json)
    return CompletionDocument(
        offset=offset,
        user_id=completion.user_id,
        command_id=completion.command_id,
        act_as=list(parties),
        submission_id=completion.submission_id,
        tx_id=completion.tx_id.hex(),
        content_digest=completion.content_digest.hex(),
        code=completion.outcome,
        log_offset=completion.log_offset,
        notarised_offset=completion.notarised_offset,
        recorded_at=format_time(completion.recorded_us),
        conflicts=conflicts,
        deduplication=_deduplication(completion),
    )


def _deduplication(completion: Completion) -> DeduplicationDocument | None:
    duration_us, after = completion.deduplication_us, completion.deduplication_after
    if duration_us is None and after is None:
        return None
    return DeduplicationDocument(None if duration_us is None else duration_us / 1e6, after)


def update_document(offset: int, completion: Completion, parties: tuple[str, ...]) -> UpdateDocument:
    """The document of a notarised transaction: a function of the row and of those of its parties that are shown."""
    assert completion.outcome == NOTARISED
    return UpdateDocument(
        offset=offset,
        tx_id=completion.tx_id.hex(),
        content_digest=completion.content_digest.hex(),
        act_as=list(parties),
        log_offset=completion.log_offset,
        recorded_at=format_time(completion.recorded_us),
    )


def checkpoint(offset: int) -> Line:
    """Tells a reader that nothing that matches was left out up to here."""
    return Line(offset, "checkpoint", _encoder.encode(CheckpointDocument(offset=offset)))


class Page(msgspec.Struct, frozen=True):
    """Some lines; all that matches up to `next_after` is in them."""

    lines: list[Line]
    next_after: int
    standing: Standing


class Feed:
    """What a front end serves of the published completions. Every method raises FeedRefused."""

    def __init__(
        self,
        participant: CoreLink,
        reader: CompletionReader,
        checkpoint_s: float,
        now_s: Callable[[], float],
        *,
        unix_s: Callable[[], float] = time.time,
        room: Room | None = None,
    ) -> None:
        """`checkpoint_s`: the longest silence of a stream. `now_s`: monotonic. `unix_s`: what tokens expire by.

        `room`: for the lines that are read and not written yet, of all readers together.
        """
        self._participant = participant
        self._reader = reader
        self._checkpoint_s = checkpoint_s
        self._now_s = now_s
        self._unix_s = unix_s
        self.room = room or Room(_ANSWERS_BYTES)
        self._turn = asyncio.Lock()
        self._scanning = asyncio.Lock()  # so that among those who wait for their turn there is one search at most
        self._tail: list[Entry] = []  # dense; who is behind it reads from the database by himself
        self._tail_bytes = 0
        self._epoch = 0
        self._closed = False

    async def close(self) -> None:
        """End all streams, and the connection."""
        self._closed = True
        self._participant.news.ring()
        await self._reader.close()

    def check(self, after: int) -> Standing:
        """The core's word, if a reader may go on behind `after`. Raises FeedRefused."""
        standing = self.check_active()
        if after < standing.pruned_to:
            raise FeedRefused(Code.OFFSET_PRUNED, f"completions up to offset {standing.pruned_to} are pruned", standing)
        if after > standing.ledger_end:
            raise FeedRefused(Code.OFFSET_AFTER_END, f"the ledger ends at offset {standing.ledger_end}", standing)
        return standing

    def check_active(self) -> Standing:
        """The core's word, if it serves. Raises FeedRefused."""
        standing = self._participant.standing
        if not standing.active or self._closed:
            raise FeedRefused(Code.NOT_ACTIVE, refuse_as_passive(standing).detail, standing)
        return standing

    def hold(self, wanted_bytes: int, holder: Hashable) -> Held:
        """Room for the lines of a page. Raises FeedRefused when there is none left for this holder."""
        held = self.room.take(wanted_bytes, holder)
        if held is None:
            raise self._no_room()
        return held

    async def page(self, wanted: Wanted, after: int, limit: int, scan_max: int, bytes_max: int = WINDOW_BYTES) -> Page:
        """At most `limit` lines behind `after`, and `bytes_max` bytes of them unless the first alone has more.

        They are of at most `scan_max` offsets, which may hold none at all; of fewer where details are large.
        """
        standing = self.check(after)
        lines = _Lines(wanted, bytes_max, limit)
        stop_at = min(standing.ledger_end, after + scan_max)
        read_bytes = 0
        while after < stop_at and read_bytes < PAGE_READ_BYTES:
            entries = await self._read(after, standing)
            read_bytes += _detail_bytes(entries)
            after = lines.add([entry for entry in entries if entry.offset <= stop_at], after)
            if lines.is_full:
                break
        return Page(lines.taken, after, standing)

    async def follow(self, wanted: Wanted, after: int) -> AsyncGenerator[list[Line]]:
        """All lines behind `after`, in batches, for ever, and a checkpoint where there was silence for long.

        Ends with FeedRefused: when the role changes, when the reader falls behind what is pruned, when the database
        does not answer, when his token expires. The reader may go on elsewhere behind the last line he had.
        """
        epoch = self.check(after).epoch
        told_at_s = self._now_s()
        while True:
            standing = self.check(after)
            if standing.epoch != epoch:
                raise FeedRefused(Code.NOT_ACTIVE, "the replica was activated again", standing)
            token_left_s = wanted.caller.expires_at_s - self._unix_s()
            if token_left_s <= 0:
                raise FeedRefused(Code.TOKEN_INVALID, "the token of this stream is too old: open another one", standing)
            window = _Lines(wanted, WINDOW_BYTES, BATCH_ROWS)
            if after < standing.ledger_end:
                held = await self.room.wait(LINE_MAX_BYTES, wanted.holder, ROOM_WAIT_MAX_S)
                if held is None:
                    raise self._no_room()
                try:
                    after = window.add(await self._read(after, standing), after)
                    held.shrink(window.size_bytes)
                    if window.taken:
                        yield window.taken
                        told_at_s = self._now_s()
                        continue
                finally:
                    held.give_back()
            silent_s = self._now_s() - told_at_s
            if silent_s >= self._checkpoint_s:
                yield [checkpoint(after)]
                told_at_s = self._now_s()
            elif after == standing.ledger_end and self._participant.standing == standing and not self._closed:
                quiet_s = min(self._checkpoint_s - silent_s, token_left_s)
                await self._participant.news.wait(max(_WAIT_MIN_S, quiet_s))

    async def find(self, log_offset: int) -> Row | None:
        """The first completion of a log record; None while it is not published, and once it is pruned."""
        standing = self.check_active()
        async with self._asking(standing) as reader:
            at = await reader.first_at(log_offset, standing.ledger_end)
            if at > standing.ledger_end:
                return None
            row = (await reader.read(at - 1, at))[0]
        return row if row[1].log_offset == log_offset else None

    async def attempts(self, wanted: Wanted, consumed: StateStatus, after: int, bytes_max: int = WINDOW_BYTES) -> Page:
        """Behind `after`: completions of the transaction that consumed a state, and those it beat; none while none did.

        Nobody was refused because of the state before it was consumed, so the search begins there. It is bounded, and
        made of questions that are: streams have their turn between them.
        """
        standing = self.check(after) if after else self.check_active()
        state, tx_id, log_offset = consumed.state, consumed.consumed_by, consumed.log_offset
        if tx_id is None or log_offset is None:
            return Page([], max(after, standing.ledger_end), standing)
        lines = _Lines(wanted, bytes_max, BATCH_ROWS)
        began_s = self._now_s()
        async with self._scanning, self._asking(standing) as reader:
            first = await reader.first_at(log_offset, standing.ledger_end)
        after = min(max(after, first - 1), standing.ledger_end)
        stop_at = min(standing.ledger_end, after + SCAN_ROWS)
        while after < stop_at and not lines.is_full:
            scan = await self._scan(state, tx_id, after, standing)
            found = lines.add([Entry(*row) for row in scan.rows], after)
            after = found if lines.is_full else scan.scanned_to
            if self._now_s() - began_s >= SCAN_S:
                break
        return Page(lines.taken, after, standing)

    async def _scan(self, state: bytes, tx_id: bytes, after: int, standing: Standing) -> Scan:
        async with self._scanning, self._asking(standing) as reader:
            return await reader.find_attempts(state, tx_id, after, standing.ledger_end)

    async def _read(self, after: int, standing: Standing) -> Sequence[Entry]:
        """Some entries behind `after`: at least one, as there is one."""
        async with self._asking(standing) as reader:
            tail = self._tail
            if tail and tail[0].offset <= after + 1 <= tail[-1].offset:
                start = after + 1 - tail[0].offset
                return _window(tail[start : start + BATCH_ROWS])
            entries = [Entry(*row) for row in await reader.read(after, standing.ledger_end, WINDOW_DETAIL_BYTES)]
            self._keep(entries)
            return entries

    @asynccontextmanager
    async def _asking(self, standing: Standing) -> AsyncIterator[CompletionReader]:
        """The reader, one question at a time: whoever waited finds kept what the one before has read."""
        async with self._turn:
            try:
                await self._keep_up(standing)
                yield self._reader
            except StoreUnavailable as error:
                raise FeedRefused(Code.FEED_UNAVAILABLE, error.detail, standing) from error

    async def _keep_up(self, standing: Standing) -> None:
        """In another epoch the database may be on another server; there, what is kept here is to be read again."""
        if standing.epoch != self._epoch:
            self._tail = []
            self._tail_bytes = 0
            self._epoch = standing.epoch
            await self._reader.reset()

    def _keep(self, entries: Sequence[Entry]) -> None:
        """Keep what is newer than all that is kept; what does not go on from there takes its place."""
        tail = self._tail
        if not entries or (tail and entries[-1].offset <= tail[-1].offset):
            return
        if tail and entries[0].offset != tail[-1].offset + 1:
            tail.clear()
            self._tail_bytes = 0
        tail.extend(entries)
        self._tail_bytes += _weight_bytes(entries)
        if len(tail) > TAIL_ROWS or self._tail_bytes > TAIL_BYTES:
            dropped = tail[: len(tail) // 2]
            del tail[: len(dropped)]
            self._tail_bytes -= _weight_bytes(dropped)

    def _no_room(self) -> FeedRefused:
        standing = self._participant.standing
        held_bytes = self.room.held_bytes
        detail = f"this front end has {held_bytes} bytes of answers under way, as much as it has for this caller"
        return FeedRefused(Code.OVERLOADED, detail, standing)


class _Lines:
    """The lines for one reader, as many as there is room for: at least one."""

    def __init__(self, wanted: Wanted, bytes_max: int, lines_max: int) -> None:
        self._wanted = wanted
        self._bytes_max = bytes_max
        self._lines_max = lines_max
        self.taken: list[Line] = []
        self.size_bytes = 0
        self.is_full = False

    def add(self, entries: Sequence[Entry], after: int) -> int:
        """Take what fits; returns the offset up to which all that matches is taken, `after` when there is none."""
        for entry in entries:
            line = entry.line(self._wanted)
            if line is not None:
                size_bytes = self.size_bytes + len(line.json)
                if self.taken and size_bytes > self._bytes_max:
                    self.is_full = True
                    return after
                self.taken.append(line)
                self.size_bytes = size_bytes
            after = entry.offset
            if len(self.taken) == self._lines_max:
                self.is_full = True
                return after
        return after


def _window(entries: Sequence[Entry]) -> Sequence[Entry]:
    """The first of them, at least one, whose lines are about what a stream is given at a time."""
    size_bytes = 0
    for count, entry in enumerate(entries):
        size_bytes += len(entry.completion.detail)
        if count and size_bytes > WINDOW_BYTES:
            return entries[:count]
    return entries


def _detail_bytes(entries: Sequence[Entry]) -> int:
    return sum([len(entry.completion.detail) for entry in entries])


def _weight_bytes(entries: Sequence[Entry]) -> int:
    """What kept rows take: names and details once as they are, and about thrice as JSON."""
    details = [len(entry.completion.detail) + sum(map(len, entry.completion.act_as)) for entry in entries]
    return _ROW_BYTES * len(entries) + 4 * sum(details)
