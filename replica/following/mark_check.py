"""Compares the log with every mark, before anything is written to it or answered from it.

The marks are read first, then the log's end: what was marked before was in the log by then. A log that ends before a
mark, or has another record at its offset, has lost records, and may have grown again since.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from ha.clock import Clock
from replica.following.follower import Follower
from replica.following.log_reading import record_at
from replica.log.interface import RequestLog
from replica.marks.judging import CONTRADICTED, Claim, Found, Meaning, Origin, contradiction, meaning
from replica.marks.keeper import MarkKeeper
from replica.notary.codes import Code
from replica.notary.errors import LogUnavailable
from replica.notary.marks import ContradictedMark, mark_of
from replica.notary.position import BEGIN, Position
from replica.notary.records import encode_record, record_digest
from replica.notary.salvage import Salvages, salvage_named

log = structlog.get_logger()

KNOWN_MAX = 1_000  # marks that the log was found to have


class MarkCheck:
    """One replica's comparisons. Each raises LogTruncated or LogRefused where the log contradicts a mark, and
    LogUnavailable."""

    def __init__(
        self,
        request_log: RequestLog,
        follower: Follower,
        marks: MarkKeeper,
        salvages: Salvages,
        *,
        clock: Clock,
        retry_s: float,
    ) -> None:
        """`retry_s`: pause before a silent log is asked again."""
        self._log = request_log
        self._follower = follower
        self._marks = marks
        self._salvages = salvages
        self._clock = clock
        self._retry_s = retry_s
        self._known: dict[tuple[int, bytes], None] = {}
        self._judged: set[tuple[str, int, bytes, bool]] = set()  # reports of peers

    @property
    def holds(self) -> bool:
        """Whether the log was found to have every mark that was known at the start."""
        return self._marks.checked

    async def run(self) -> None:
        """Compare the marks of the start, then those of peers that end. Tries again while the log is silent."""
        await self._marks.hear()
        while True:
            try:
                if not self._marks.checked:
                    await self._compare_at_start()
                await self._look_at_reports()
                await self._marks.news.wait()
                self._marks.news.clear()
            except LogUnavailable as error:
                log.info("marks_not_compared", detail=error.detail)
                await self._clock.sleep_s(self._retry_s)

    async def _compare_at_start(self) -> None:
        highest = await self.compare(None)
        await self._follower.wait_for(lambda position: position.offset >= highest)
        self._marks.note_checked()
        log.info("marks_hold", newest_offset=highest)

    def note_left(self, left: Sequence[ContradictedMark]) -> None:
        """What replicas have left in the database as it is now; `compare` counts it."""
        self._marks.note_left(left)

    async def compare(self, published: Position | None) -> int:
        """Find every mark that is known now in the log. The highest of their offsets: it is to be applied before
        anything is written or answered."""
        claims = self._marks.claims()
        if published is not None and published.offset > BEGIN:
            claims.append(Claim(mark_of(published), Origin.PUBLISHED))
        position = await self._follower.wait_for(lambda _: True)
        end = await self._log.agreed_end_offset()  # after the marks were read
        return max(
            [claim.mark.offset for claim in claims if await self._holds(claim, position.topic_id, end)] or [BEGIN]
        )

    async def _holds(self, claim: Claim, log_id: str, end: int) -> bool:
        """Whether the log has it; False where it says nothing of this log."""
        found = await self._find(claim, log_id, end)
        means = meaning(claim, found)
        if means in CONTRADICTED:
            self._marks.contradict(claim.mark, own=claim.origin is Origin.OWN)
            raise contradiction(claim, found, means)
        if means in (Meaning.FOREIGN, Meaning.REFUTED):
            log.error("mark_foreign", code=Code.MARK_FOREIGN.name, peer=claim.peer, offset=claim.mark.offset)
            if means is Meaning.FOREIGN:
                self._marks.note_foreign(claim.peer)
            else:
                self._marks.note_refuted(claim.peer, mark_of(claim.mark))
        return means is Meaning.HOLDS

    async def _find(self, claim: Claim, log_id: str, end: int) -> Found:
        mark = claim.mark
        key = mark.offset, mark.digest
        if mark.topic_id != log_id or mark.offset >= end:
            return Found(log_id, end, None, False, await self._has_barrier(claim, log_id, end))
        if key in self._known:
            return Found(log_id, end, mark.digest, False, True)
        value = await record_at(self._log, mark.offset)
        digest, named = record_digest(value), salvage_named(mark.offset, value)
        lost = named is not None and named in self._salvages.held
        if digest == mark.digest or lost:
            self._note_known(key)
            return Found(log_id, end, digest, lost, True)
        words_to = await self._words_to(claim, log_id, end)
        return Found(log_id, end, digest, False, await self._has_barrier(claim, log_id, end), words_to)

    async def _words_to(self, claim: Claim, log_id: str, end: int) -> int:
        """The newest offset of what the peer told before that the log has."""
        held = BEGIN
        for word in claim.witness.words:
            at = word.offset
            if word.topic_id == log_id and max(held, claim.mark.offset - 1) < at < end:
                held = at if record_digest(await record_at(self._log, at)) == word.digest else held
        return held

    async def _has_barrier(self, claim: Claim, log_id: str, end: int) -> bool:
        mark = claim.mark
        if claim.origin is not Origin.PEER or mark.topic_id != log_id or mark.barrier is None:
            return False
        return mark.barrier_offset < end and await record_at(self._log, mark.barrier_offset) == encode_record(
            mark.barrier
        )

    def _note_known(self, key: tuple[int, bytes]) -> None:
        self._known[key] = None
        if len(self._known) > KNOWN_MAX:
            del self._known[next(iter(self._known))]

    async def _look_at_reports(self) -> None:
        """Each report of a peer once: it stops this replica only where the log shows it to be true."""
        for claim in self._marks.reports():
            key = claim.peer, claim.mark.offset, claim.mark.digest, claim.seconded
            if key not in self._judged and len(self._judged) < KNOWN_MAX:
                position = await self._follower.wait_for(lambda _: True)
                await self._holds(claim, position.topic_id, await self._log.agreed_end_offset())
                self._judged.add(key)
                self._marks.note_judged(claim)
