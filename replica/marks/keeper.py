"""Keeps the marks of one replica: what its seen file had at the start, what peers tell, and how far it read itself."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

import structlog
from msgspec import structs

from ha.clock import Clock
from replica.marks.judging import Claim, Origin, Witness
from replica.marks.seen_file import REFUTED_MAX, Seen, SeenFile, SeenState
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, SeenFileUnwritable
from replica.notary.marks import (
    NOTHING_TOLD,
    ContradictedMark,
    ContradictedMarks,
    MarksTold,
    mark_of,
    mark_text,
    read_mark,
)
from replica.notary.position import BEGIN, Position, encode_position

log = structlog.get_logger()

SYNC_EVERY_S = 0.2  # at most so often, and only while something changes
LEAVE_S = 2.5  # peers look every second, and a look may take one
HEAR_MAX_S = 3.0  # how long a start waits for what peers and database tell; who is away cannot hold up the others
SAY_MAX_S = 2.0  # how long an end waits for the database to take the mark


class _Told:
    """What one peer told, read."""

    def __init__(self, told: MarksTold) -> None:
        self.applied = read_mark(told.applied)
        self.synced = {name: mark for name, text in told.synced.items() if (mark := read_mark(text)) is not None}
        self.contradicted = read_mark(told.contradicted)
        self.contradicted_own = told.contradicted_own


class _Word(NamedTuple):
    """A position that a peer told while it was well. `read_to`: the newest offset that this replica has read with the
    reader that it had before it asked; None: up to now."""

    mark: Position
    read_to: int | None


class MarkKeeper:
    """Its `run` writes the seen file until it is cancelled. Nothing waits for that."""

    def __init__(
        self,
        name: str,
        seen_file: SeenFile,
        clock: Clock,
        peers: Collection[str] = (),
        archived: Position | None = None,
        *,
        database: bool = False,
    ) -> None:
        """`peers`: the other replicas' names; others have no health document that is listened to. `archived`: the
        archive's mark. `database`: the replicas share one, and `exchange` is called with it."""
        self._archived = archived
        self._name = name
        self._file = seen_file
        self._clock = clock
        self._found, self.state = seen_file.read()
        self._synced = self._found  # what is on the disk
        self._applied: Position | None = None
        self._told = dict.fromkeys(peers, _Told(NOTHING_TOLD))
        self._readers = 0  # that were opened
        self._heard = dict.fromkeys(peers, False)
        self._asked_in = dict.fromkeys(peers, 0)  # by peer: the reader, when it was asked last
        self._words: dict[str, _Word] = {}
        self._late: dict[str, Position] = {}  # by peer: its own mark, when it was first heard after the start
        self._unheard = set(peers)
        self._all_heard = asyncio.Event()
        self._database_unheard = database
        self._note_heard()
        self._rows: Sequence[ContradictedMark] = ()  # in the database
        self._left: dict[str, _Told] = {}  # what they tell, by replica
        self._left_here: ContradictedMark | None = None  # by this process
        self._said = asyncio.Event()  # it is in the database
        if not database:
            self._said.set()
        self._own_judged: Position | None = None  # what an earlier start left, and the log does not bear out
        self.checked = False  # the log has every mark that was known when it was compared last
        self.contradicted: Position | None = None
        self._contradicted_own = False
        self.refuted = dict(self._found.refuted)  # by peer
        self.foreign: set[str] = set()  # peers whose marks are not of this log
        self.news = asyncio.Event()  # a peer tells of a contradiction
        self._is_written = True
        if self.state is SeenState.DAMAGED:
            log.error("seen_file_damaged", code=Code.SEEN_FILE_DAMAGED.name)
        elif self.state is SeenState.SLOT_TORN:
            log.warning("seen_file_slot_torn")

    # ---- what is known ----

    def claims(self) -> list[Claim]:
        """Every mark that is known now."""
        found = self._found
        return [
            *([] if found.own is None else [Claim(found.own, Origin.OWN)]),
            *([] if found.contradicted is None else [_left_claim(found.contradicted, own=found.contradicted_own)]),
            *([] if self._archived is None else [Claim(self._archived, Origin.ARCHIVED)]),
            *(Claim(mark, Origin.PEER, name) for name, mark in found.peers.items()),
            *(claim for name, told in self._everybody() for claim in self._claims_of(name, told)),
        ]

    def reports(self) -> list[Claim]:
        """Every mark of a peer that ends because its log contradicts one: the barrier of that one may be lost too. And
        the mark with which a peer came that a start did not wait for: a standby may not read the log itself."""
        return [
            claim
            for name, told in self._everybody()
            if told.contradicted is not None
            for claim in self._claims_of(name, told)
        ] + [Claim(mark, Origin.PEER, name) for name, mark in self._late.items()]

    def _everybody(self) -> list[tuple[str, _Told]]:
        """What peers tell, and what replicas left in the database: also this one, at an earlier start, perhaps with
        another disk. That counts as a peer's."""
        return [*self._told.items(), *self._left.items()]

    def _claims_of(self, name: str, told: _Told) -> Iterable[Claim]:
        marks = [told.applied, *told.synced.values()]
        yield from (Claim(mark, Origin.PEER, name) for mark in marks if mark is not None)
        mark = told.contradicted
        if mark is not None and not (told.contradicted_own and mark == self.refuted.get(name)):
            yield self._own_claim(name, mark) if told.contradicted_own else Claim(mark, Origin.PEER, name)

    def _own_claim(self, name: str, mark: Position) -> Claim:
        ending = self.refuted.keys() | {peer for peer, told in self._everybody() if told.contradicted_own}
        return Claim(mark, Origin.PEER, name, self._witness(name), seconded=len(ending | {name}) > 1)

    def _witness(self, name: str) -> Witness:
        """What may speak against a peer's own position."""
        word, applied = self._words.get(name), BEGIN if self._applied is None else self._applied.offset
        kept = (self._found.peers.get(name), self._synced.peers.get(name), None if word is None else word.mark)
        words = tuple([mark for mark in kept if mark is not None])
        if word is None:
            return Witness(words)
        return Witness(words, word.mark.offset, applied if word.read_to is None else word.read_to)

    def told(self) -> MarksTold:
        """What this replica tells its peers."""
        synced = dict(self._synced.peers)
        if self._synced.own is not None:
            synced[self._name] = self._synced.own
        return MarksTold(
            applied=mark_text(self._applied) if self.checked else "",
            synced={name: mark_text(mark) for name, mark in synced.items()},
            contradicted=mark_text(self.contradicted),
            contradicted_own=self._contradicted_own,
        )

    def covered_offset(self, published_offset: int) -> int:
        """The newest offset whose loss is noticed after a power cut: see lead.py."""
        log_id = None if self._applied is None else self._applied.topic_id
        own = _offset(self._synced.own, log_id)
        at_peers = [
            max(_offset(told.synced.get(name), log_id), _offset(told.synced.get(self._name), log_id))
            for name, told in self._told.items()
        ]
        return max(published_offset, min(own, max(at_peers, default=BEGIN)))

    @property
    def strangers(self) -> set[str]:
        """Peers whose marks are not of this log."""
        return self.foreign | self.refuted.keys()

    @property
    def is_file_faulty(self) -> bool:
        """Whether the seen file was damaged at the start, or cannot be written."""
        return self.state is SeenState.DAMAGED or not self._is_written

    def problems(self) -> list[str]:
        """What a person should look at, each with its code."""
        found = [f"{Code.MARK_FOREIGN.name}: {name}'s marks are not of this log" for name in sorted(self.strangers)]
        if self.state is SeenState.DAMAGED:
            found.append(f"{Code.SEEN_FILE_DAMAGED.name}: both slots were damaged at the start")
        if not self._is_written:
            found.append(f"{Code.SEEN_FILE_UNWRITABLE.name}: the mark on the disk does not move")
        return found

    # ---- what is noted ----

    def note_applied(self, position: Position) -> None:
        """This replica has read so far."""
        self._applied = position

    def note_opened(self) -> None:
        """The log is read with another reader from now on: it may have been cut since the one before read its last."""
        applied = BEGIN if self._applied is None else self._applied.offset
        for name, word in self._words.items():
            if word.read_to is None:
                self._words[name] = word._replace(read_to=applied)
        self._readers += 1

    def note_told(self, name: str, told: MarksTold | None) -> None:
        """What a peer's health document tells; None: it gave no answer."""
        if name not in self._told:
            return
        is_first = not self._heard[name] and told is not None
        if told is not None:
            try:
                self._told[name] = _Told(told)
            except BadRequest as error:
                log.warning("peer_marks_unreadable", peer=name, detail=error.detail)
        if is_first and self.checked and (mark := self._told[name].synced.get(name)) is not None:
            self._late[name] = mark
            self.news.set()
        self._heard[name] |= told is not None
        if self._told[name].contradicted is not None:
            self.news.set()
        elif told is not None and (applied := self._told[name].applied) is not None:
            is_after = self._asked_in[name] == self._readers  # it was asked with this reader already
            self._words[name] = _Word(applied, None if is_after else BEGIN)
            self.refuted.pop(name, None)
        self._asked_in[name] = self._readers
        self._unheard.discard(name)
        self._note_heard()

    def _note_heard(self) -> None:
        if not self._unheard and not self._database_unheard:
            self._all_heard.set()

    def note_left(self, rows: Sequence[ContradictedMark]) -> None:
        """What replicas that ended left in the database."""
        self._database_unheard = False
        self._note_heard()
        if list(rows) == list(self._rows):
            return
        self._rows, self._left = tuple(rows), {}
        for row in rows:
            try:
                told = _Told(MarksTold(contradicted=row.mark.hex(), contradicted_own=row.own_disk))
            except BadRequest as error:
                log.warning("peer_marks_unreadable", peer=row.replica, detail=error.detail)
            else:
                self._left[row.replica] = told
        self.news.set()

    def note_judged(self, claim: Claim) -> None:
        """This replica goes on in spite of a report."""
        if claim.peer == self._name:
            self._own_judged = claim.mark

    def note_checked(self) -> None:
        """The log has every mark that was known: from now on the seen file goes on from what is applied."""
        self.checked = True
        self._found, self._archived = Seen(), None

    def note_foreign(self, name: str) -> None:
        """A peer's marks are not of this log."""
        self.foreign.add(name)

    def note_refuted(self, name: str, mark: Position) -> None:
        """The log refutes a peer's own position, until it tells another one."""
        if len(self.refuted) < REFUTED_MAX:
            self.refuted[name] = mark

    async def hear(self) -> None:
        """Return once every peer and the database were asked for marks, after HEAR_MAX_S at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HEAR_MAX_S):
                await self._all_heard.wait()

    def contradict(self, mark: Position, *, own: bool) -> None:
        """The log contradicts this mark; `own`: a position on this disk. Peers are told the oldest one, and the file
        gets it: the cut may have taken the barriers of newer ones, and then peers do not believe these."""
        if mark.offset > BEGIN and (self.contradicted is None or mark.offset < self.contradicted.offset):
            self.contradicted, self._contradicted_own = mark_of(mark), own

    async def say(self) -> None:
        """Call before the lock is given up: return once the database has the contradicted mark, if there is one, after
        SAY_MAX_S at the latest."""
        if self.contradicted is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SAY_MAX_S):
                    await self._said.wait()

    async def leave(self) -> None:
        """Call before the process ends: leave a contradicted mark where peers look, and for the next start."""
        if self.contradicted is not None:
            await self._write()
            if self._told:
                await self._clock.sleep_s(LEAVE_S)

    # ---- the database ----

    async def exchange(self, shared: ContradictedMarks) -> None:
        """Read what replicas left in the database, and leave this one's contradicted mark there. What is refuted goes,
        and what this replica left at an earlier start, once it goes on. Raises what `shared` raises."""
        self.note_left(await shared.contradicted_marks())
        if self.contradicted is not None:
            mark = encode_position(self.contradicted)
            left = ContradictedMark(self._name, mark, self._contradicted_own)
            if left != self._left_here:
                await shared.leave_mark(left)
                self._left_here = left
                self._said.set()
            return
        for row in self._rows:
            told = self._left.get(row.replica)
            if told is not None and self._is_over(row.replica, told):
                await shared.take_mark_away(row)

    def _is_over(self, name: str, told: _Told) -> bool:
        is_refuted = told.contradicted_own and told.contradicted == self.refuted.get(name)
        return is_refuted or (name == self._name and told.contradicted == self._own_judged)

    # ---- the seen file ----

    async def run(self) -> None:
        """Keep the file up to date."""
        while True:
            await self._write()
            await self._clock.sleep_s(SYNC_EVERY_S)

    async def _write(self) -> None:
        seen = self._wanted()
        if seen == self._synced:
            return
        try:
            await self._file.write(seen)
        except SeenFileUnwritable as error:
            if self._is_written:
                log.error("seen_file_unwritable", code=error.code.name, detail=error.detail)
            self._is_written = False
            return
        self._synced, self._is_written = seen, True

    def _wanted(self) -> Seen:
        """What the file should have. Until the log was compared with what it had, nothing of that is given up."""
        if not self.checked or self._applied is None:
            if self.contradicted is None:
                return structs.replace(self._synced, refuted=dict(self.refuted))
            return Seen(
                *(self._synced.own, self._synced.peers, self.contradicted, self._contradicted_own), dict(self.refuted)
            )
        own = mark_of(self._applied) if self._applied.offset > BEGIN else None
        peers = {name: mark for name, told in self._told.items() if (mark := self._to_keep(name, told)) is not None}
        return Seen(own, peers, self.contradicted, self._contradicted_own, dict(self.refuted))

    def _to_keep(self, name: str, told: _Told) -> Position | None:
        """A peer's newest mark, if it is of this log."""
        assert self._applied is not None
        if name in self.foreign:
            return None
        log_id = self._applied.topic_id
        known = [told.applied, told.synced.get(name), self._synced.peers.get(name)]
        of_this = [mark for mark in known if mark is not None and mark.topic_id == log_id]
        return max(of_this, key=lambda mark: mark.offset, default=None)


def _left_claim(mark: Position, *, own: bool) -> Claim:
    return Claim(mark, Origin.OWN if own else Origin.LEFT)


def _offset(mark: Position | None, log_id: str | None) -> int:
    return BEGIN if mark is None or mark.topic_id != log_id else mark.offset
