"""Published completions and updates after a ledger offset, in order, live at the end.

The core reports over the link how far completions are published. The front end reads the rows from the database, over a
connection of its own that cannot write. It keeps the newest rows, rendered once for all readers. It sends no query
while nothing new is published or nobody follows.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Hashable, Sequence
from contextlib import asynccontextmanager

import msgspec

from ledger_api.server.authorisation import Caller
from ledger_api.server.byte_budget import ByteBudget, Reservation
from ledger_api.server.feed_lines import Entry, Line, LineWindow, Wanted, checkpoint
from ledger_api.server.feed_tail import BATCH_ROWS, WINDOW_BYTES, Tail
from ledger_api.server.rate import RateExceeded, RateLimit
from ledger_api.server.turns import Turns
from replica.link.interface import CoreLink, Standing, refuse_as_passive
from replica.notary.answers import StateStatus
from replica.notary.codes import Code
from replica.notary.errors import NotaryError, StoreUnavailable
from replica.store.interface import Row
from replica.store.reader import WINDOW_DETAIL_BYTES, CompletionReader, Scan

LINE_MAX_BYTES = 2_500_000  # a conflict of 9,999 states has 1.9 MB
BUDGET_WAIT_MAX_S = 5.0  # how long a stream waits while others hold the whole budget
PAGE_READ_BYTES = 32_000_000  # of details that one page scans, whether or not they match
SCAN_ROWS, SCAN_S = 20_000, 1.0  # rows that a call for attempts scans; it starts no query later than this
_ANSWERS_BYTES = 128 * 2**20
_ROWS_WAIT_MAX_S = 0.5  # then a stream looks again whether it may go on
_WAIT_MIN_S = 0.001  # the rest of a silence may round to zero, and the loop would not wait


class FeedRefused(NotaryError):
    """The feed cannot serve the request, or can no longer. `standing`: the core's report at that moment."""

    def __init__(self, code: Code, detail: str, standing: Standing) -> None:
        super().__init__(detail, code)
        self.standing = standing


class Page(msgspec.Struct, frozen=True):
    """Some lines, with every match up to `next_after`."""

    lines: list[Line]
    next_after: int
    standing: Standing


class Feed:
    """Serves the published completions of a front end. Every method raises FeedRefused."""

    def __init__(
        self,
        core: CoreLink,
        reader: CompletionReader,
        checkpoint_s: float,
        now_s: Callable[[], float],
        *,
        unix_s: Callable[[], float] = time.time,
        budget: ByteBudget | None = None,
        rows: RateLimit | None = None,
    ) -> None:
        """`checkpoint_s`: the longest silence of a stream. `now_s`: monotonic. `unix_s`: what tokens expire by.

        `budget`: for the lines that are read and not written yet, of all readers together. `rows`: how many each caller
        may have read for it, whether they match or not; None: any.
        """
        self._core = core
        self._reader = reader
        self._checkpoint_s = checkpoint_s
        self._now_s = now_s
        self._unix_s = unix_s
        self.budget = budget or ByteBudget(_ANSWERS_BYTES)
        self.tail = Tail()
        self._rows = rows
        self._turns = Turns()
        self._scanning = Turns()  # so that among those who wait for their turn there is one search at most
        self._epoch = 0
        self._closed = False

    async def close(self) -> None:
        """End all streams, and the connection."""
        self._closed = True
        self._core.standing_changes.notify()
        await self._reader.close()

    def check(self, after: int) -> Standing:
        """The core's report, if a reader may go on after this offset. Raises FeedRefused."""
        standing = self.check_active()
        self._check_kept(after, standing)
        if after > standing.ledger_end:
            raise FeedRefused(Code.OFFSET_AFTER_END, f"the ledger ends at offset {standing.ledger_end}", standing)
        return standing

    def check_active(self) -> Standing:
        """The core's report, if it serves. Raises FeedRefused."""
        standing = self._core.standing
        if not standing.active or self._closed:
            refused = refuse_as_passive(standing)
            raise FeedRefused(Code[refused.code], refused.detail, standing)
        return standing

    def hold(self, wanted_bytes: int, holder: Hashable) -> Reservation:
        """Reserve bytes for the lines of a page. Raises FeedRefused when none are left for this holder."""
        reservation = self.budget.take(wanted_bytes, holder)
        if reservation is None:
            raise self._exhausted()
        return reservation

    async def page(self, wanted: Wanted, after: int, limit: int, scan_max: int, bytes_max: int = WINDOW_BYTES) -> Page:
        """At most `limit` lines after an offset, and `bytes_max` bytes of them unless the first alone has more.

        One call scans at most `scan_max` offsets, fewer where details are large, or once the caller has used its share
        of rows. It may find no line there. Raises RateExceeded where none are left at the beginning.
        """
        standing = self.check(after)
        self._check_rows(wanted.holder)
        window = LineWindow(wanted, bytes_max, limit)
        stop_at = min(standing.ledger_end, after + scan_max)
        read_bytes = 0
        while after < stop_at and read_bytes < PAGE_READ_BYTES:
            entries = await self._read(after, standing, wanted.holder)
            self._charge(wanted.holder, len(entries))
            read_bytes += sum([len(entry.completion.detail) for entry in entries])
            after = window.add([entry for entry in entries if entry.offset <= stop_at], after)
            if window.is_full or self._wait_s(wanted.holder):
                break
        return Page(window.taken, after, standing)

    async def follow(self, wanted: Wanted, after: int) -> AsyncGenerator[list[Line]]:
        """All lines after an offset, in batches, for ever, and a checkpoint after each long silence.

        Raises FeedRefused when the replica serves no more, completions that the reader still needs are pruned, the
        database does not answer, or the reader's token expires. Where the active alone serves, a new epoch ends it as
        well. The reader may go on elsewhere after its last line.
        """
        epoch = self.check(after).epoch
        sent_at_s = self._now_s()
        while True:
            standing = self._check_stream(wanted.caller, after, epoch)
            if after < standing.ledger_end:
                if wait_s := self._wait_s(wanted.holder):
                    await asyncio.sleep(min(wait_s, _ROWS_WAIT_MAX_S))
                    continue
                reservation = await self._wait_for_budget(wanted.holder)
                try:
                    window = LineWindow(wanted, WINDOW_BYTES, BATCH_ROWS)
                    is_kept = bool(self.tail.after(after))
                    entries = await self._read(after, standing, wanted.holder)
                    if not is_kept:  # the newest are read once for all who follow
                        self._charge(wanted.holder, len(entries))
                    after = window.add(entries, after)
                    reservation.shrink(window.size_bytes)
                    if window.taken:
                        yield window.taken
                        sent_at_s = self._now_s()
                        continue
                finally:
                    reservation.release()
            silent_s = self._now_s() - sent_at_s
            if silent_s >= self._checkpoint_s:
                yield [checkpoint(after)]
                sent_at_s = self._now_s()
            elif after >= standing.ledger_end and self._core.standing == standing and not self._closed:
                quiet_s = min(self._checkpoint_s - silent_s, wanted.caller.left_s(self._unix_s()))
                await self._core.standing_changes.wait(max(_WAIT_MIN_S, quiet_s))

    async def find(self, log_offset: int, holder: Hashable) -> Row | None:
        """The first completion of a log record; None while it is not published, and once it is pruned."""
        standing = self.check_active()
        async with self._asking(standing, holder) as reader:
            at = await reader.first_at(log_offset, standing.ledger_end)
            if at > standing.ledger_end:
                return None
            row = (await reader.read(at - 1, at))[0]
        return row if row[1].log_offset == log_offset else None

    async def attempts(self, wanted: Wanted, consumed: StateStatus, after: int, bytes_max: int = WINDOW_BYTES) -> Page:
        """Completions after an offset: of the transaction that consumed a state, and of those that came too late.

        There are none while the state is not consumed. Before it was consumed, nothing was refused because of it, so
        the search begins there. The search is bounded, and so is each of its queries: streams get their turn between
        queries.
        """
        standing = self.check(after) if after else self.check_active()
        state, tx_id, log_offset = consumed.state, consumed.consumed_by, consumed.log_offset
        if tx_id is None or log_offset is None:
            return Page([], max(after, standing.ledger_end), standing)
        self._check_rows(wanted.holder)
        window = LineWindow(wanted, bytes_max, BATCH_ROWS)
        began_s = self._now_s()
        async with self._scanning.turn(wanted.holder), self._asking(standing, wanted.holder) as reader:
            first = await reader.first_at(log_offset, standing.ledger_end)
        after = min(max(after, first - 1), standing.ledger_end)
        stop_at = min(standing.ledger_end, after + SCAN_ROWS)
        while after < stop_at and not window.is_full:
            scan = await self._scan(state, tx_id, after, standing, wanted.holder)
            self._charge(wanted.holder, scan.scanned_to - after)
            found = window.add([Entry(*row) for row in scan.rows], after)
            after = found if window.is_full else scan.scanned_to
            if self._now_s() - began_s >= SCAN_S or self._wait_s(wanted.holder):
                break
        return Page(window.taken, after, standing)

    def _check_stream(self, caller: Caller, after: int, epoch: int) -> Standing:
        """The core's report, if a stream of this epoch may go on. Raises FeedRefused.

        Where all serve, whoever leads is nothing to a stream: the same rows come from whichever server has them. A
        promoted server may lack the newest that this stream has sent; they are published again, as they were.
        """
        standing = self.check_active()
        if standing.all_serve:
            self._check_kept(after, standing)
        elif self.check(after).epoch != epoch:
            raise FeedRefused(Code.NOT_ACTIVE, "the replica was activated again", standing)
        if caller.left_s(self._unix_s()) <= 0:
            raise FeedRefused(
                Code.TOKEN_INVALID, "the token of this stream is too old, or revoked: open another one", standing
            )
        return standing

    def _check_kept(self, after: int, standing: Standing) -> None:
        if after < standing.pruned_to:
            raise FeedRefused(Code.OFFSET_PRUNED, f"completions up to offset {standing.pruned_to} are pruned", standing)

    async def _wait_for_budget(self, holder: Hashable) -> Reservation:
        reservation = await self.budget.wait(LINE_MAX_BYTES, holder, BUDGET_WAIT_MAX_S)
        if reservation is None:
            raise self._exhausted()
        return reservation

    def _exhausted(self) -> FeedRefused:
        held_bytes = self.budget.held_bytes
        detail = f"this front end has {held_bytes} bytes of answers under way, as much as it has for this caller"
        return FeedRefused(Code.OVERLOADED, detail, self._core.standing)

    async def _scan(self, state: bytes, tx_id: bytes, after: int, standing: Standing, holder: Hashable) -> Scan:
        async with self._scanning.turn(holder), self._asking(standing, holder) as reader:
            return await reader.find_attempts(state, tx_id, after, standing.ledger_end)

    def _check_rows(self, holder: Hashable) -> None:
        wait_s = self._wait_s(holder)
        if wait_s:
            raise RateExceeded("this caller has used its share of rows that are looked through", wait_s)

    def _wait_s(self, holder: Hashable) -> float:
        """Seconds until rows may be read for this caller again."""
        return 0.0 if self._rows is None else self._rows.wait_s(holder, 1, self._now_s())

    def _charge(self, holder: Hashable, rows: int) -> None:
        if self._rows is not None:
            self._rows.spend(holder, rows, self._now_s())

    async def _read(self, after: int, standing: Standing, holder: Hashable) -> Sequence[Entry]:
        """Some entries after an offset: at least one, as there is one."""
        async with self._asking(standing, holder) as reader:
            kept = self.tail.after(after)
            if kept:
                return kept
            entries = [Entry(*row) for row in await reader.read(after, standing.ledger_end, WINDOW_DETAIL_BYTES)]
            self.tail.keep(entries)
            return entries

    @asynccontextmanager
    async def _asking(self, standing: Standing, holder: Hashable) -> AsyncIterator[CompletionReader]:
        """The reader, for one query at a time, in the callers' turns.

        After a wait, the tail has the rows that the query before has read.
        """
        async with self._turns.turn(holder):
            try:
                await self._keep_up(standing)
                yield self._reader
            except StoreUnavailable as error:
                raise FeedRefused(Code.FEED_UNAVAILABLE, error.detail, standing) from error

    async def _keep_up(self, standing: Standing) -> None:
        """Drop all kept rows in another epoch: the database may be on another server then."""
        if standing.epoch != self._epoch:
            self.tail.clear()
            self._epoch = standing.epoch
            await self._reader.reset()
