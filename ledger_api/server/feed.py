"""Completions and updates from a ledger offset on: what is published, in order, live at the end.

The core says over the link how far completions are published; the rows come from the database, over a connection of
this front end that cannot write. The newest rows are kept, rendered once for all who follow. Nothing is asked of the
database while nothing new is published or nobody follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from ledger_api.server.entitlement import Caller, may_see, may_see_parties
from replica.link.interface import Participant, Standing, refuse_as_passive
from replica.notary.documents import NOTARISED, ConflictDocument, format_time
from replica.notary.errors import Code, NotaryError, StoreUnavailable
from replica.notary.feed_documents import CheckpointDocument, CompletionDocument, UpdateDocument
from replica.notary.requests import format_state_ref
from replica.notary.rules import Conflict
from replica.store.interface import Completion
from replica.store.reader import CompletionReader, Row, Scan

BATCH_ROWS = 500
TAIL_ROWS = 8_000
TAIL_DETAIL_BYTES = 16_000_000
_WAIT_MIN_S = 0.001  # what is left of a silence may round to nothing, and no time would pass
_encoder = msgspec.json.Encoder()
_conflicts = msgspec.msgpack.Decoder(tuple[Conflict, ...])


class FeedRefused(NotaryError):
    """What was asked for cannot be served, or not any longer; `standing` was the core's word at that moment."""

    def __init__(self, code: Code, detail: str, standing: Standing) -> None:
        super().__init__(detail, code)
        self.standing = standing


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader asks for: updates or completions, of one user or of all, of some parties or of all."""

    updates: bool = False
    user_id: str | None = None
    parties: frozenset[str] | None = None
    caller: Caller


class Line(msgspec.Struct, frozen=True):
    """One document of a stream: its offset, its kind, and its JSON."""

    offset: int
    kind: str
    json: bytes


class Entry:
    """A completion at its ledger offset; its documents are made once, when somebody wants them."""

    __slots__ = ("_completion_line", "_update_line", "completion", "offset")

    def __init__(self, offset: int, completion: Completion) -> None:
        self.offset = offset
        self.completion = completion
        self._completion_line: Line | None = None
        self._update_line: Line | None = None

    def line(self, wanted: Wanted) -> Line | None:
        """What a reader is told of it; None when it is not for him."""
        completion = self.completion
        act_as = completion.act_as
        if wanted.parties is not None and wanted.parties.isdisjoint(act_as):
            return None
        if wanted.updates:
            return self._as_update() if may_see_parties(wanted.caller, act_as) else None
        if wanted.user_id is not None and wanted.user_id != completion.user_id:
            return None
        return self._as_completion() if may_see(wanted.caller, completion.user_id, act_as) else None

    def _as_completion(self) -> Line:
        if self._completion_line is None:
            raw = _encoder.encode(completion_document(self.offset, self.completion))
            self._completion_line = Line(self.offset, "completion", raw)
        return self._completion_line

    def _as_update(self) -> Line | None:
        completion = self.completion
        if completion.notarised_offset != completion.log_offset:
            return None  # refused, or notarised by an earlier record
        if self._update_line is None:
            raw = _encoder.encode(update_document(self.offset, completion))
            self._update_line = Line(self.offset, "update", raw)
        return self._update_line


def completion_document(offset: int, completion: Completion) -> CompletionDocument:
    """The document of a completion: a function of the row alone."""
    conflicts = _conflicts.decode(completion.detail) if completion.detail else ()
    return CompletionDocument(
        offset=offset,
        user_id=completion.user_id,
        command_id=completion.command_id,
        act_as=list(completion.act_as),
        submission_id=completion.submission_id,
        tx_id=completion.tx_id.hex(),
        content_digest=completion.content_digest.hex(),
        code=completion.outcome,
        log_offset=completion.log_offset,
        notarised_offset=completion.notarised_offset,
        recorded_at=format_time(completion.recorded_us),
        conflicts=[ConflictDocument(format_state_ref(c.state), c.consumed_by_hash.hex(), c.usage) for c in conflicts],
    )


def update_document(offset: int, completion: Completion) -> UpdateDocument:
    """The document of a notarised transaction: a function of the row alone."""
    assert completion.outcome == NOTARISED
    return UpdateDocument(
        offset=offset,
        tx_id=completion.tx_id.hex(),
        content_digest=completion.content_digest.hex(),
        act_as=list(completion.act_as),
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
        participant: Participant,
        reader: CompletionReader,
        checkpoint_s: float,
        now_s: Callable[[], float],
        unix_s: Callable[[], float] = time.time,
    ) -> None:
        """`checkpoint_s`: the longest silence of a stream. `now_s`: monotonic. `unix_s`: what tokens expire by."""
        self._participant = participant
        self._reader = reader
        self._checkpoint_s = checkpoint_s
        self._now_s = now_s
        self._unix_s = unix_s
        self._turn = asyncio.Lock()
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

    async def page(self, wanted: Wanted, after: int, limit: int, scan_max: int) -> Page:
        """At most `limit` lines behind `after`, from at most about `scan_max` offsets, which may hold none at all."""
        standing = self.check(after)
        lines: list[Line] = []
        stop_at = min(standing.ledger_end, after + scan_max)
        while after < stop_at:
            for entry in await self._read(after, standing):
                after = entry.offset
                line = entry.line(wanted)
                if line is not None:
                    lines.append(line)
                if len(lines) == limit or after == stop_at:
                    return Page(lines, after, standing)
        return Page(lines, after, standing)

    async def follow(self, wanted: Wanted, after: int) -> AsyncIterator[list[Line]]:
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
            lines: list[Line] = []
            if after < standing.ledger_end:
                entries = await self._read(after, standing)
                lines = [line for entry in entries if (line := entry.line(wanted))]
                after = entries[-1].offset
            silent_s = self._now_s() - told_at_s
            if not lines and silent_s >= self._checkpoint_s:
                lines = [checkpoint(after)]
            if lines:
                yield lines
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

    async def find_attempts(self, state: bytes, tx_id: bytes, log_offset: int, after: int) -> Scan:
        """Behind `after`: completions of the transaction that consumed a state at `log_offset`, and those it beat.

        Nobody was refused because of the state before it was consumed, so the search begins there; it is bounded.
        """
        standing = self.check_active()
        async with self._asking(standing) as reader:
            first = await reader.first_at(log_offset, standing.ledger_end)
            start = min(max(after, first - 1), standing.ledger_end)
            return await reader.find_attempts(state, tx_id, start, standing.ledger_end)

    async def _read(self, after: int, standing: Standing) -> Sequence[Entry]:
        """Some entries behind `after`: at least one, as there is one."""
        async with self._asking(standing) as reader:
            tail = self._tail
            if tail and tail[0].offset <= after + 1 <= tail[-1].offset:
                start = after + 1 - tail[0].offset
                return tail[start : start + BATCH_ROWS]
            entries = [Entry(*row) for row in await reader.read(after, standing.ledger_end)]
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
        self._tail_bytes += _detail_bytes(entries)
        if len(tail) > TAIL_ROWS or self._tail_bytes > TAIL_DETAIL_BYTES:
            dropped = tail[: len(tail) // 2]
            del tail[: len(dropped)]
            self._tail_bytes -= _detail_bytes(dropped)


def _detail_bytes(entries: Sequence[Entry]) -> int:
    return sum([len(entry.completion.detail) for entry in entries])
