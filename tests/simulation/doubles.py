"""The environment of a replica: database and lock server, request log, disk, clocks. Weather decides how they fail.

Built on the product's own in-memory doubles. A statement or a record in flight does not depend on its sender: it
arrives even if the sending process was stopped or killed meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from ha.lock import notes
from ha.lock.interface import DatabaseIdentity, ReleaseNote
from ha.lock.memory import ConnectionGone, MemoryLockServer, MemoryLockSession
from ha.settings import ElectionSettings
from replica.index.commands import due
from replica.index.interface import NOTHING, Commands, Parties
from replica.index.memory import MemoryCommands, MemoryParties
from replica.log.memory import Delivery, MemoryLog, MemoryReader, MemoryTopic
from replica.notary.acceptances import FIRST_KEY_BYTES
from replica.notary.errors import IndexUnreadable, LogUnavailable, ValuesRefused
from replica.notary.formats import Formats
from replica.notary.parties import Officers
from replica.notary.position import Position
from replica.notary.requests import TIME_MAX_US
from replica.store.interface import AdmissionResult, Command, Completion, OfEach, Pruned
from replica.store.memory import MemoryDatabase
from tests.simulation.plan import START_US
from tests.simulation.process import Process, current_process
from tests.simulation.story import Story
from tests.simulation.weather import Skies

_T = TypeVar("_T")
VALUE_REFUSED = "\ufdd0"  # no database of this world stores it
_OF_ALL_COPIES = ("published_ever", "contradictions", "bounds_ever")  # kept when a backup is restored
_HOLDER_SEEN_S = 2.0  # a passive that polled less often may have seen the lock free all the time
_RELEASE_KNOWN_S = 5.0  # a passive that saw a release on purpose may not have looked since


class SimulatedClock:
    """A machine's clocks: boot time runs at its own rate, the wall clock can be set."""

    def __init__(self, rate: float = 1.0, apart_s: float = 0.0) -> None:
        self.ahead_us = 0
        self._start_us = START_US + round(apart_s * 1e6)
        self._rate = rate
        self._loop = asyncio.get_running_loop()

    def boottime_s(self) -> float:
        return self._loop.time() * self._rate

    def wall_us(self) -> int:
        return self._start_us + int(self._loop.time() * 1e6) + self.ahead_us

    async def sleep_s(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)


# ---- the database ----


class Tables(MemoryDatabase):
    """The participant's tables, with the last commits remembered, so that a standby can have missed them."""

    def __init__(self, story: Story, keeps_history: bool) -> None:
        super().__init__()
        self.published_ever: dict[int, Completion] = {}
        self.contradictions: list[str] = []  # completions that were published otherwise before
        self.bounds_ever: list[int] = [0]  # up to which completions were pruned
        self._story = story
        self._keeps_history = keeps_history
        self._history: deque[dict[str, Any]] = deque(maxlen=50)

    def _remember(self) -> None:
        """Note the state before a commit, if it may be wanted."""
        if self._keeps_history:
            self._history.append(self._state())

    def _state(self) -> dict[str, Any]:
        """The whole content of the database."""
        return {k: copy(v) for k, v in vars(self).items() if not k.startswith("_") and k not in _OF_ALL_COPIES}

    def copied(self) -> Tables:
        """A backup."""
        tables = Tables(self._story, self._keeps_history)
        vars(tables).update(self._state() | {key: vars(self)[key] for key in _OF_ALL_COPIES})
        return tables

    def forget_history(self) -> None:
        """From now on no standby lacks the last commits."""
        self._history.clear()

    def without_last(self, commits: int) -> Tables:
        """A standby that missed this many commits."""
        standby = self.copied()
        if commits and self._history:
            vars(standby).update({k: copy(v) for k, v in self._history[-min(commits, len(self._history))].items()})
        return standby

    def admit(
        self, commands: Sequence[Command], accepted_since_us: OfEach, accepted_after: OfEach = 0
    ) -> list[AdmissionResult]:
        if any(VALUE_REFUSED in command.command_id for command in commands):
            raise ValuesRefused("admit: a value that the database does not take")
        self._remember()
        return super().admit(commands, accepted_since_us, accepted_after)

    def raise_rules(self, formats: Formats) -> None:
        """What an operator writes."""
        self._remember()
        self.formats = formats
        self._story.tell("database", "raised", formats=formats)

    def pause_service(self, paused: bool) -> None:
        """What an operator writes."""
        self._remember()
        self.service_paused = paused
        self._story.tell("database", "service paused" if paused else "service resumed")

    def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        self._remember()
        pruned = super().prune(up_to, recorded_before_us)
        self._story.tell("database", "prune", to=pruned.pruned_to, safe_to=pruned.safe_to)
        self.bounds_ever.append(pruned.pruned_to)
        return pruned

    def raise_epoch(self, above: int, replica: str) -> int:
        self._remember()
        epoch = super().raise_epoch(above, replica)
        self._story.tell("database", "epoch", epoch=epoch, above=above, replica=replica)
        return epoch

    def publish(self, completions: Sequence[Completion], position: Position) -> int:
        self._remember()
        start = len(self.completions)
        end = super().publish(completions, position)
        self._story.tell("database", "publish", count=len(completions), to=position.offset, ledger_end=end)
        for at, published in enumerate(completions, start + 1):
            # a successor does not know what the log does not have
            completion = replace(published, deduplication_us=None, deduplication_after=None)
            before = self.published_ever.setdefault(at, completion)
            if before != completion:
                self.contradictions.append(f"ledger offset {at} was {before}, now it is {completion}")
        return end


class DatabaseServer(MemoryLockServer):
    """One Postgres server: lock, sessions, tables. Statements travel and are carried out without their client."""

    def __init__(
        self,
        skies: Skies,
        story: Story,
        tables: Tables,
        *,
        election: ElectionSettings,
        timeline: int = 1,
        system: str = "simulated",
    ) -> None:
        super().__init__(SimulatedClock(), lease_s=election.lease_s)
        self.tables = tables
        self.too_early: list[str] = []  # replicas that took the lock before its grace period was over
        self._grace_s = 0.97 * election.grace_s  # clocks run at slightly different rates
        self.identity = DatabaseIdentity("postgres", system, timeline)
        self.processes: dict[int, Process | None] = {}
        self._skies = skies
        self._story = story
        self._loop = asyncio.get_running_loop()
        self._freed_at_s = self._taken_at_s = self._loop.time()
        self.interrupted: set[str] = set()  # the last holder, which may not know of a later one: it need not wait
        self._released_at_s = -1e9  # on purpose

    def connect(self, name: str) -> int:
        if self._skies.of(name).database_cut:
            raise ConnectionGone("no route to the server")
        pid = super().connect(name)
        self.processes[pid] = current_process()
        return pid

    async def exchange(self, name: str, pid: int, statement: str, action: Callable[[], _T]) -> _T:
        answer: asyncio.Future[_T] = self._loop.create_future()
        request_s, answer_s = self._travel(name, statement)
        if request_s is not None:
            self._loop.call_later(request_s, self._arrive, name, pid, statement, action, answer, answer_s)
        return await answer

    def _travel(self, name: str, statement: str) -> tuple[float | None, float | None]:
        """How long request and answer travel; None for what never arrives."""
        random, share = self._skies.random, self._skies.of(name).database_share
        request_s: float | None = random.uniform(0.0002, 0.003)
        answer_s: float | None = random.uniform(0.0002, 0.003)
        if self._skies.strikes_with(share):
            what = random.choice(("statement_lost", "answer_lost", "statement_late", "answer_late"))
            self._skies.struck(what, name)
            self._story.tell(name, what, statement=statement)
            late_s = random.choice((0.1, 0.5, 1.5, 4.0)) * random.random()
            match what:
                case "statement_lost":
                    request_s = None
                case "answer_lost":
                    answer_s = None
                case "statement_late":
                    request_s = late_s
                case _:
                    answer_s = late_s
        return request_s, answer_s

    def _arrive(
        self,
        name: str,
        pid: int,
        statement: str,
        action: Callable[[], Any],
        answer: asyncio.Future[Any],
        answer_s: float | None,
    ) -> None:
        if self._skies.of(name).database_cut:  # sent again until it gets through
            self._loop.call_later(0.2, self._arrive, name, pid, statement, action, answer, answer_s)
            return
        error: Exception | None = None
        result = None
        try:
            result = self.carry_out(pid, action)
        except Exception as raised:  # an answer, too
            error = raised
        if answer_s is not None:
            self._loop.call_later(answer_s, self._answered, name, answer, result, error)

    def _answered(self, name: str, answer: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
        if self._skies.of(name).database_cut:
            self._loop.call_later(0.2, self._answered, name, answer, result, error)
        elif answer.done():
            pass
        elif error is not None:
            answer.set_exception(error)
        else:
            answer.set_result(result)

    def client_closed(self, name: str, pid: int) -> None:
        """The close travels as a message, too: after those sent before, and not at all while the network is cut."""
        process = self.processes.get(pid)
        if (process is None or process.alive) and not self._skies.of(name).database_cut:
            self._loop.call_later(self._skies.random.uniform(0.003, 0.01), self.end, pid)

    def try_lock(self, pid: int) -> bool:
        was_free = self._holder is None
        granted = super().try_lock(pid)
        if granted and was_free:
            now_s, name = self._loop.time(), self._backends[pid].name
            waited = now_s - self._freed_at_s >= self._grace_s or now_s - self._released_at_s < _RELEASE_KNOWN_S
            was_seen = self._freed_at_s - self._taken_at_s > _HOLDER_SEEN_S
            if not waited and was_seen and name not in self.interrupted:
                self.too_early.append(f"{name} took the lock {now_s - self._freed_at_s:.3f} s after it was interrupted")
            self.interrupted.discard(name)
            self._taken_at_s = now_s
        return granted

    def unlock(self, pid: int, note: ReleaseNote) -> None:
        if self._holder == pid:
            self._freed_at_s = self._released_at_s = self._loop.time()
        super().unlock(pid, note)

    def end(self, pid: int) -> None:
        if self._holder == pid:
            self.interrupted.add(self._backends[pid].name)
            self._freed_at_s = self._loop.time()
        super().end(pid)

    def tell_all(self, text: str) -> None:
        """Send a NOTIFY on the lock's channel: each session gets it, and one that cannot handle it ends."""
        for pid, backend in list(self._backends.items()):
            try:
                note = notes.decode_note(text)
            except Exception:
                self.end(pid)
                continue
            if note is not None and backend.hear is not None:
                backend.hear(note)

    def process_ended(self, process: Process, after_s: float) -> None:
        """The kernel of a killed process closes its connections."""
        for pid, owner in self.processes.items():
            if owner is process:
                self._loop.call_later(after_s, self.end, pid)

    def sessions_of(self, name: str) -> list[int]:
        """The sessions of a replica."""
        return [pid for pid, backend in self._backends.items() if backend.name == name]

    def holder(self) -> str:
        """The replica that has the lock; empty if there is none."""
        owner = self.owner()
        return "" if owner is None else owner.name


class DatabaseSession(MemoryLockSession):
    """A lock session that knows the tables of its server."""

    def __init__(self, server: DatabaseServer, *, name: str, settings: ElectionSettings, clock: SimulatedClock) -> None:
        super().__init__(server, name=name, settings=settings, clock=clock)
        self.server = server


# ---- the request log ----


class Topic(MemoryTopic):
    """The topic; it notes in the story what is stored."""

    def __init__(self, story: Story, topic_id: str = "memory-1") -> None:
        super().__init__(topic_id)
        self._story = story
        self._waiting: list[asyncio.Future[None]] = []
        self.newest_at_s: float | None = None  # when the newest record came
        self._stored_at_s: list[float] = []

    def store(self, value: bytes) -> None:
        self.newest_at_s = asyncio.get_running_loop().time()
        self._stored_at_s.append(self.newest_at_s)
        self._story.tell("topic", "store", offset=self.end_offset, size=len(value), bytes=value[-24:])
        super().store(value)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            _finish(future)

    async def wait_for_change(self, wait_s: float) -> None:
        """Return when something happened, or after `wait_s`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        timer = loop.call_later(wait_s, _finish, future)
        try:
            await future
        finally:
            timer.cancel()

    async def end(self) -> None:
        """The run is over."""

    @property
    def stored_at_s(self) -> list[float]:
        """When each record came."""
        return self._stored_at_s

    @property
    def values(self) -> list[bytes]:
        """All records."""
        return self._records


class Wire(Delivery):
    """How one writer's records travel: out of its process' queue, over a network that loses, repeats, delays them."""

    def __init__(self, name: str, process: Process, skies: Skies, story: Story, linger_s: float) -> None:
        self._name = name
        self._process = process
        self._skies = skies
        self._story = story
        self._linger_s = linger_s
        self._loop = asyncio.get_running_loop()
        self._purged = False
        self._lands_at_s = 0.0
        self._view = View(skies)

    def send(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        if self._strike(0.05, "queue_full"):
            raise LogUnavailable("the queue is full")
        tries_until_s = self._loop.time() + 5.0
        wait_s = self._skies.random.uniform(0.0, self._linger_s)
        self._loop.call_later(wait_s, self._transmit, value, topic, give_up, tries_until_s)

    def purge(self) -> None:
        self._purged = True

    def _transmit(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None], tries_until_s: float) -> None:
        if self._purged or not self._process.alive:
            return
        again = partial(self._transmit, value, topic, give_up, tries_until_s)
        if self._process.stopped:
            self._process.deliver(again)
        elif self._skies.of(self._name).log_cut or self._view.takes_nothing():
            if self._loop.time() > tries_until_s:
                give_up()
            else:
                self._loop.call_later(0.05, again)
        else:
            self._travel(value, topic, give_up)

    def _travel(self, value: bytes, topic: MemoryTopic, give_up: Callable[[], None]) -> None:
        random, now_s = self._skies.random, self._loop.time()
        lands_at_s = self._lands_at_s = max(self._lands_at_s, now_s + random.uniform(0.0005, 0.004))
        clogged_until_s = self._skies.of(self._name).log_clogged_until_s
        if clogged_until_s > now_s:
            self._skies.struck("append_held", self._name)
            lands_at_s = self._lands_at_s = max(lands_at_s, clogged_until_s + random.uniform(0.0, 0.01))
        if self._strike(1.0, "append"):
            what = random.choice(("append_late", "append_repeated", "append_reordered", "append_lost"))
            self._skies.struck(what, self._name)
            self._story.tell(self._name, what, bytes=value[-24:])
            later_s = now_s + random.choice((0.02, 0.2, 1.0, 5.0)) * random.random()
            if what == "append_lost":
                self._loop.call_later(0.5, give_up)
                return
            if what == "append_repeated":
                self._loop.call_at(later_s, topic.store, value)
                self._skies.note_landing(later_s)
            else:
                lands_at_s = later_s if what == "append_late" else now_s + 0.03 * random.random()
        self._loop.call_at(lands_at_s, topic.store, value)
        self._skies.note_landing(lands_at_s)

    def _strike(self, factor: float, what: str) -> bool:
        strikes = self._skies.strikes_with(factor * self._skies.of(self._name).log_share)
        if strikes and what != "append":
            self._skies.struck(what, self._name)
        return strikes


class View:
    """Which broker a connection takes for the leader, while the old leader is cut off from its peers.

    A connection from before the cut stays with the old leader until the cut is healed. A new connection gets either
    leader with equal chance.
    """

    def __init__(self, skies: Skies) -> None:
        self._skies = skies
        self._opened_s = asyncio.get_running_loop().time()
        self._is_old = skies.leader_cut is not None and skies.views.random() < 0.5

    def old_end(self) -> int | None:
        """Where the log ends on the broker that it uses; None: the real end."""
        cut = self._skies.leader_cut
        return cut.end if cut is not None and (self._is_old or self._opened_s < cut.since_s) else None

    def takes_nothing(self) -> bool:
        """Whether no broker acknowledges an append."""
        cut = self._skies.leader_cut
        return cut is not None and (self.old_end() is not None or asyncio.get_running_loop().time() < cut.elected_s)


class SimulatedLog(MemoryLog):
    """One process' access to the topic."""

    def __init__(self, topic: Topic, name: str, process: Process, skies: Skies, story: Story, linger_s: float) -> None:
        super().__init__(topic, lambda: Wire(name, process, skies, story, linger_s))
        self.name = name
        self.skies = skies
        self.reader: SlowReader | None = None  # the newest
        self._finds_at_s = -1.0  # when questions are sent to the new leader

    async def check(self) -> str:
        await self.travel()
        return await super().check()

    async def end_offset(self) -> int:
        await self.travel()
        self.old_end = self._asked_end()
        end = await super().end_offset()
        await self.travel()
        return end

    def _asked_end(self) -> int | None:
        """The end in answers to questions, which go to another broker only after a moment."""
        cut, now_s = self.skies.leader_cut, asyncio.get_running_loop().time()
        if cut is None:
            return None
        if self._finds_at_s < cut.since_s:
            self._finds_at_s = now_s + self.skies.views.uniform(0.0, 3.0)
        return cut.end if now_s < self._finds_at_s else None

    async def agreed_end_offset(self) -> int:
        await self.travel()
        end = await super().agreed_end_offset()
        await self.travel()
        return end

    async def open_reader(self, start_offset: int) -> MemoryReader:
        await super().open_reader(start_offset)  # refuses; the reader itself is ours
        self.reader = SlowReader(self, self._topic, start_offset)
        return self.reader

    async def open_writer(self) -> Any:
        await self.travel()
        return await super().open_writer()

    async def travel(self) -> None:
        """One way to the brokers. Raises LogUnavailable after a while when they are out of reach."""
        weather, random = self.skies.of(self.name), self.skies.random
        if weather.log_cut:
            await asyncio.sleep(random.uniform(0.1, 1.0))
            if weather.log_cut:
                self.skies.struck("log_unreachable", self.name)
                raise LogUnavailable("out of reach")
        late_s = weather.reads_late_s
        await asyncio.sleep(random.uniform(0.0002, 0.002) + (random.uniform(0.0, late_s) if late_s else 0.0))


class SlowReader(MemoryReader):
    """Reads late, not at all, or broken, as the weather decides."""

    _log: SimulatedLog
    _topic: Topic
    silent = False

    def __init__(self, log: SimulatedLog, topic: Topic, start_offset: int) -> None:
        super().__init__(log, topic, start_offset)
        self._view = View(log.skies)

    @property
    def old_end(self) -> int | None:  # type: ignore[override]
        return self._next if self.silent else self._view.old_end()

    async def _wait(self, wait_s: float) -> None:
        if self._next == self.old_end:
            await asyncio.sleep(wait_s)  # nothing wakes it
        elif self._next == self._topic.end_offset:
            await self._topic.wait_for_change(wait_s)
        weather, random = self._log.skies.of(self._log.name), self._log.skies.random
        late_s = weather.reads_late_s
        if late_s:
            self._log.skies.struck("read_late", self._log.name)
        await asyncio.sleep(random.uniform(0.0002, 0.002) + (random.uniform(0.0, late_s) if late_s else 0.0))
        if weather.log_cut:
            await asyncio.sleep(wait_s)
            self._log.skies.struck("log_unreachable", self._log.name)
            self._failure = LogUnavailable("out of reach")


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


# ---- the disk ----


class Disk:
    """One machine's index: what is written outlives the process, except the newest batches if the machine goes."""

    def __init__(self) -> None:
        self.entries: dict[bytes, bytes] = {}
        self.position: Position | None = None
        self.commands = DiskCommands()
        self.parties = DiskParties()
        self._undo: deque[tuple[list[bytes], Position | None]] = deque(maxlen=32)

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        """One batch each for commands and the rest."""
        accepted_due = due(accepted, self.commands.position(), self.position, position)
        if accepted_due is not None:
            self.commands.write(accepted_due, position)
        self.write_states(entries, position)

    def write_states(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        """What an older release writes: it leaves the table of commands where it is."""
        self._undo.append(([key for key in entries if key not in self.entries], self.position))
        self.entries.update(entries)
        self.position = position

    def tear(self, batches: int, of_commands: int) -> int:
        """Lose the newest batches of both tables, each whole; returns how many there were to lose of the first one.

        The two tables have write-ahead logs of their own, so one may lose more than the other.
        """
        lost = min(batches, len(self._undo))
        for _ in range(lost):
            added, self.position = self._undo.pop()
            for key in added:
                del self.entries[key]
        self.commands.tear(of_commands)
        self.parties.tear(of_commands)
        return lost


class DiskCommands(MemoryCommands):
    """The acceptances on one machine's disk."""

    def __init__(self) -> None:
        super().__init__()
        self._undo: deque[tuple[list[bytes], Position | None]] = deque(maxlen=32)

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._undo.append((list(entries), self._position))
        super().write(entries, position)

    def tear(self, batches: int) -> None:
        """Lose the newest batches, each whole."""
        for _ in range(min(batches, len(self._undo))):
            added, self._position = self._undo.pop()
            for key in added:
                del self._entries[key]
                self._of[key[:FIRST_KEY_BYTES]].remove(key)


class DiskParties(MemoryParties):
    """Officers and registrations on one machine's disk."""

    def __init__(self) -> None:
        super().__init__()
        self._undo: deque[tuple[list[bytes], Position | None]] = deque(maxlen=32)

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._undo.append((list(entries), self._position))
        super().write(entries, position)

    def tear(self, batches: int) -> None:
        """Lose the newest batches, each whole."""
        for _ in range(min(batches, len(self._undo))):
            added, self._position = self._undo.pop()
            for key in added:
                del self._entries[key]


class PartiesAccess:
    """A process' access to officers and registrations on its machine's disk."""

    def __init__(self, table: DiskParties, require_disk: Callable[[str], None]) -> None:
        self._table = table
        self._require_disk = require_disk

    def position(self) -> Position | None:
        return self._table.position()

    @property
    def entry_count(self) -> int:
        return self._table.entry_count

    def officers(self) -> Officers:
        return self._table.officers()

    def newest(self, ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        return self._table.newest(ids, below)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        return self._table.lookup(keys)

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._require_disk("index_write_failed")
        self._table.write(entries, position)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return self._table.entries()


class CommandsAccess:
    """A process' access to the acceptances on its machine's disk."""

    def __init__(self, table: DiskCommands, require_disk: Callable[[str], None], blind: bool) -> None:
        """`blind`: an admission that asks for the newest of all finds nothing."""
        self._blind = blind
        self._table = table
        self._require_disk = require_disk

    def position(self) -> Position | None:
        return self._table.position()

    @property
    def entry_count(self) -> int:
        return self._table.entry_count

    def newest(self, change_ids: Sequence[bytes], below: Sequence[int]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        if self._blind and below and below[0] == TIME_MAX_US:
            return [None] * len(change_ids)
        return self._table.newest(change_ids, below)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        return self._table.lookup(keys)

    def write(self, entries: Mapping[bytes, bytes], position: Position) -> None:
        self._require_disk("index_write_failed")
        self._table.write(entries, position)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return self._table.entries()


class DiskIndex:
    """A process' access to the index on its machine's disk."""

    def __init__(self, disk: Disk, name: str, skies: Skies, blind: bool = False) -> None:
        self._disk = disk
        self._blind = blind
        self._name = name
        self._skies = skies

    def position(self) -> Position | None:
        return self._disk.position

    @property
    def commands(self) -> Commands:
        return CommandsAccess(self._disk.commands, self._require_disk, self._blind)

    @property
    def parties(self) -> Parties:
        return PartiesAccess(self._disk.parties, self._require_disk)

    def lookup(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._require_disk("index_read_failed")
        entries = self._disk.entries
        return [entries.get(key) for key in keys]

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        self._require_disk("index_write_failed")
        self._disk.write(entries, position, accepted)

    def entries(self) -> Iterator[tuple[bytes, bytes]]:
        return iter(sorted(self._disk.entries.items()))

    def checkpoint(self, folder: Path) -> None:
        raise IndexUnreadable("there is no folder in a simulation")

    def close(self) -> None:
        return

    def _require_disk(self, what: str) -> None:
        if self._skies.of(self._name).disk_broken:
            self._skies.struck(what, self._name)
            raise IndexUnreadable("input/output error")


class OlderIndex(DiskIndex):
    """The same of an older release, which knows nothing of acceptances and registrations: it neither reads nor writes
    them."""

    @property
    def commands(self) -> Commands:
        return _Unknown(self._disk)

    @property
    def parties(self) -> Parties:
        return _UnknownParties(self._disk)

    def write(
        self, entries: Mapping[bytes, bytes], position: Position, accepted: Mapping[bytes, bytes] = NOTHING
    ) -> None:
        self._require_disk("index_write_failed")
        self._disk.write_states(entries, position)


class _UnknownParties(MemoryParties):
    """Likewise; what is written there is gone."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def position(self) -> Position | None:
        return self._disk.position


class _Unknown(MemoryCommands):
    """Nothing is missing in it, so that nobody completes it."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk

    def position(self) -> Position | None:
        return self._disk.position
