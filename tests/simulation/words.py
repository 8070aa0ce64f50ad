"""Operators' words of a simulated log: said by people and replicas through the product's code, over bad connections.

People pause fail-over, resume it, and raise the bound of pruning, each from a replica's machine. Replicas follow both,
and tell why their activations ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any

from replica.active.lease_log import FollowedLease
from replica.active.shared_bound import SharedBound
from replica.following.follower import Follower
from replica.log.interface import RequestLog
from replica.marks.keeper import MarkKeeper
from replica.notary import words as product
from replica.notary.errors import LogUnavailable
from replica.notary.formats import Formats
from replica.notary.words import UNSAID, NewWord, Word, decode_word, encode_word, fold
from replica.participant import Participant
from replica.store.bulletin import Board, Bulletin
from replica.store.sqlite.looking import LedgerBoard
from replica.store.words import ENDED, PAUSE, PRUNED, bound_in, ends_in, raised

if TYPE_CHECKING:
    from ha.lock.silence import LeaseView
    from tests.simulation.replica import Replica
    from tests.simulation.world import World

_LOST_SHARE = 0.1  # of the words have no answer, and count later or never
_REPEATED_SHARE = 0.25  # come a second time: whoever sent them had no answer from the first leader
_LATE_MAX_S = 3.0
_AGAIN_S = 0.3  # a person who was told to try again
SETTLED_MAX_S = 8.0  # after the last fault: the pauses are over, and replicas know it


class WordsNodes:
    """The words of the log, in their order. `said` has each that took effect, with the moment."""

    def __init__(self, world: World) -> None:
        self.random = Random(f"{world.plan.seed}/words")
        self.in_force: dict[str, Word] = {}
        self.said: list[tuple[float, str, bytes]] = []
        self._world = world
        self._reference: dict[str, tuple[int, bytes]] = {}
        self._landed = 0

    def land(self, body: bytes) -> None:
        """A word is committed."""
        self._landed += 1
        fold(self.in_force, self._landed, body)
        word = decode_word(body)
        assert word is not None
        version, _ = self._reference.get(word.name, (0, b""))
        if version == word.replaces:  # the rule, written a second time
            self._reference[word.name] = self._landed, word.value
            self.said.append((self._world.loop.time(), word.name, word.value))
            self._world.story.tell("words", word.name, version=self._landed, bytes=len(word.value))
        found = {name: (word.version, word.value) for name, word in self.in_force.items()}
        if found != self._reference:
            self._world.blame(f"words in force are {found}, and the log says {self._reference}")

    def was_in_force(self, name: str, since_s: float, holds: Callable[[bytes], bool]) -> bool:
        """Whether such a value was in force at any moment since then."""
        values = [(at_s, value) for at_s, of, value in self.said if of == name]
        before = [value for at_s, value in values if at_s <= since_s][-1:] or [b""]
        return any(map(holds, before + [value for at_s, value in values if at_s > since_s]))


class WordsAccess:
    """See WordsLog: one machine's way to the words."""

    def __init__(self, world: World, machine: str) -> None:
        self._world = world
        self._machine = machine
        self._nodes = world.words
        self._random = world.words.random

    async def words(self, prefix: str) -> Mapping[str, Word]:
        """See WordsLog."""
        await self._travel()
        found = {name: word for name, word in self._nodes.in_force.items() if name.startswith(prefix)}
        await self._travel()
        return found

    async def say(self, word: NewWord) -> Word:
        """See WordsLog."""
        await self._travel()
        body, random, loop = encode_word(word), self._random, self._world.loop
        if random.random() < _REPEATED_SHARE:
            loop.call_later(random.uniform(0.0, _LATE_MAX_S), self._nodes.land, body)
        if random.random() < _LOST_SHARE:
            if random.random() < 0.5:
                loop.call_later(random.uniform(0.0, _LATE_MAX_S), self._nodes.land, body)
            raise LogUnavailable("no answer")
        self._nodes.land(body)
        found = self._nodes.in_force.get(word.name, UNSAID)
        await self._travel()
        return found

    async def agreed_wall_us(self) -> int:
        """See ClockedLog."""
        await self._travel()
        return self._world.primary.wall_us()

    async def end_offset(self) -> int:
        """See WordsLog."""
        await self._travel()
        return self._world.topic.end_offset

    async def _travel(self) -> None:
        await asyncio.sleep(self._random.uniform(0.0002, 0.01))
        if self._world.skies.of(self._machine).log_cut:
            await asyncio.sleep(self._random.uniform(0.1, 1.0))
            raise LogUnavailable("out of reach")


class SimulatedBoard(LedgerBoard):
    """The product's board; who led last is in no file here."""

    def __init__(self, world: World, machine: str) -> None:
        super().__init__([], WordsAccess(world, machine))
        self._world = world

    async def _newest_holder(self, words: product.WordsLog) -> str | None:
        await words.end_offset()
        return self._world.holder() or None


class WatchedBulletin(Bulletin):
    """Knows since when it bars its replica, and what ends it has said."""

    def __init__(self, world: World, replica: str, marks: MarkKeeper) -> None:
        @asynccontextmanager
        async def board(_: str) -> AsyncIterator[Board]:
            yield SimulatedBoard(world, replica)

        super().__init__(board, replica, marks)
        self._world = world
        self._barred_since_s: float | None = None

    def _note_pause(self, pause: Any) -> None:
        super()._note_pause(pause)
        bars = pause is not None and pause.keeper != self._replica
        if not bars:
            self._barred_since_s = None
        elif self._barred_since_s is None:
            self._barred_since_s = self._world.loop.time()

    def claimed(self) -> None:
        """Its replica claims the lease: what it decided before it knew of a pause is done by now."""
        election = self._world.election
        known_s = election.answer_max_s + election.tick_s
        if self._barred_since_s is not None and self._world.loop.time() - self._barred_since_s > known_s:
            self._world.blame(f"{self._replica} claims the lease, and knows that fail-over is paused for another")


class WordedLease(FollowedLease):
    """Tells who claims."""

    def __init__(
        self,
        request_log: RequestLog,
        follower: Follower,
        random_bytes: Callable[[int], bytes],
        now_us: Callable[[], int],
        raised: Callable[[], Awaitable[Formats]],
        bulletin: WatchedBulletin,
    ) -> None:
        super().__init__(request_log, follower, random_bytes, now_us, raised)
        self._bulletin = bulletin

    async def claim(self, name: str, view: LeaseView) -> bytes | None:
        """See LeaseLog."""
        self._bulletin.claimed()
        return await super().claim(name, view)


def raised_formats(world: World, machine: str) -> Callable[[], Awaitable[Formats]]:
    """What asks for the formats that operators have raised, as a claim names them. In plans without an officer nothing
    is raised."""

    async def raised() -> Formats:
        return await SimulatedBoard(world, machine).formats() if world.plan.registers else Formats()

    return raised


def shared_bound(world: World, replica: Replica, participant: Participant[Any]) -> SharedBound:
    """What has a replica follow the bound in the log."""
    return SharedBound(WordsAccess(world, replica.name), replica.ledger, participant.prune_own, replica.clock)


class People:
    """What operators do, one at each machine, and what they are promised in return."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._busy: list[asyncio.Task[None]] = []
        self._called_off: list[tuple[bytes, float]] = []  # reasons of pauses, and when that was answered

    @property
    def is_paused(self) -> bool:
        """Whether fail-over is paused."""
        return bool(self._world.words.in_force.get(PAUSE, UNSAID).value)

    def pause(self, machine: str, lasts_s: float) -> None:
        """Somebody pauses fail-over there, and resumes it after a while."""
        self._do(self._pause(SimulatedBoard(self._world, machine), f"work at {machine}", lasts_s))

    def raise_bound(self, machine: str, by: int) -> None:
        """Somebody lets some more completions go, of those that there are."""
        end = self._world.primary.tables.ledger_end
        bound = min(end, bound_in(self._world.words.in_force.get(PRUNED, UNSAID).value) + by)
        self._do(self._raise(WordsAccess(self._world, machine), bound))

    def end_pauses(self) -> None:
        """When all is healed nobody waits for a pause to be over."""
        self._do(self._resume_after(list(self._busy), SimulatedBoard(self._world, self._world.replicas[0].name)))

    async def _resume_after(self, others: list[asyncio.Task[None]], board: SimulatedBoard) -> None:
        await asyncio.gather(*others)  # what one of them still says may count after this
        await self._resume(board)

    async def _pause(self, board: SimulatedBoard, work: str, lasts_s: float) -> None:
        loop, words = self._world.loop, self._world.words
        asked_s = loop.time()
        reason = f"{work}, {asked_s:.4f}"
        try:
            pause = await board.pause(reason)
        except LogUnavailable:  # it may count at any time: it is called off
            await self._resume(board)
            self._called_off.append((reason.encode(), loop.time()))
            return
        if pause is not None:
            told = pause.reason.encode()
            if not words.was_in_force(PAUSE, asked_s, lambda value: told in value):
                self._world.blame(f"somebody was told that fail-over is paused, and it never was: {pause}")
            await asyncio.sleep(lasts_s)
            await self._resume(board)

    async def _resume(self, board: SimulatedBoard) -> None:
        while True:
            asked_s = self._world.loop.time()
            try:
                await board.resume()
            except LogUnavailable:
                await asyncio.sleep(_AGAIN_S)
                continue
            if not self._world.words.was_in_force(PAUSE, asked_s, lambda value: not value):
                self._world.blame("somebody was told that the pause is over, and it never was")
            return

    async def _raise(self, words: WordsAccess, bound: int) -> None:
        asked_s = self._world.loop.time()
        try:
            await product.replace(words, PRUNED, lambda value: raised(value, bound))
        except LogUnavailable:
            return
        if not self._world.words.was_in_force(PRUNED, asked_s, lambda value: bound_in(value) >= bound):
            self._world.blame(f"somebody was told that the bound is {bound} at least, and it never was")

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        self._busy.append(asyncio.create_task(work))

    def raise_errors(self) -> None:
        """What broke one of them is a mistake of the simulator's, or of the product's."""
        for task in self._busy:
            if task.done():
                task.result()

    def missing(self) -> list[str]:
        """What has not come to rest."""
        missing = ["somebody still speaks"] if not all(task.done() for task in self._busy) else []
        missing += ["fail-over is paused"] if self.is_paused else []
        bound = bound_in(self._world.words.in_force.get(PRUNED, UNSAID).value)
        return missing + [
            f"{replica.name} pruned to {replica.ledger.tables.pruned_to} of {bound}"
            for replica in self._world.replicas
            if replica.ledger.tables.pruned_to != bound
        ]

    def judge(self, holders: Mapping[int, str]) -> None:
        """Bounds never fall, no pause comes back after it was called off, and an end that was told is of an epoch's own
        holder: `holders` has them by epoch."""
        for reason, over_s in self._called_off:
            if any(at_s > over_s and reason in value for at_s, _, value in self._world.words.said):
                self._world.blame(f"a pause came back after it was called off: {reason!r}")
        bounds = [bound_in(value) for _, name, value in self._world.words.said if name == PRUNED]
        if bounds != sorted(bounds):
            self._world.blame(f"the bound of pruning fell: {bounds}")
        told = ends_in({name: word for name, word in self._world.words.in_force.items() if name.startswith(ENDED)})
        for epoch, end in told.items():
            if end.replica != holders.get(epoch):
                self._world.blame(f"{end.replica} told why epoch {epoch} ended: {holders.get(epoch)} had it")
