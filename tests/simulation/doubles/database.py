"""The database and its lock server: what they keep, and how statements travel to them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, TypeVar

from ha.lock import notes
from ha.lock.interface import DatabaseIdentity, ReleaseNote
from ha.lock.memory import ConnectionGone, MemoryLockServer, MemoryLockSession
from ha.settings import ElectionSettings
from replica.notary.formats import Formats
from replica.notary.position import Position
from replica.store.interface import Completion, Pruned, Row
from replica.store.memory import MemoryDatabase
from tests.simulation.doubles.clock import SimulatedClock
from tests.simulation.process import Process, current_process
from tests.simulation.story import Story
from tests.simulation.weather import Skies

_T = TypeVar("_T")
_OF_ALL_COPIES = ("published_ever", "contradictions", "bounds_ever")  # kept when a backup is restored
_HOLDER_SEEN_S = 2.0  # a passive that polled less often may have seen the lock free all the time
_RELEASE_KNOWN_S = 5.0  # a passive that saw a release on purpose may not have looked since


class Tables(MemoryDatabase):
    """The participant's tables, with the last commits remembered, so that a standby can have missed them."""

    def __init__(self, story: Story, keeps_history: bool) -> None:
        super().__init__()
        self.published_ever: dict[int, Completion] = {}
        self.contradictions: list[str] = []  # completions that were published otherwise before
        self.bounds_ever: list[int] = [0]  # up to which completions were pruned
        self._story = story
        self.publication_held = False  # another session has the table of completions locked
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

    def publish(self, completions: Sequence[Row], position: Position, after_offset: int) -> int:
        if self.publication_held:
            raise ConnectionGone("canceling statement due to lock timeout")
        self._remember()
        pruned_to = super().publish(completions, position, after_offset)
        self._story.tell("database", "publish", count=len(completions), to=position.offset, ledger_end=self.ledger_end)
        for at, completion in completions:
            before = self.published_ever.setdefault(at, completion)
            if before != completion:
                self.contradictions.append(f"ledger offset {at} was {before}, now it is {completion}")
        return pruned_to


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
        if what := self._skies.fate(name, ("statement_lost", "answer_lost", "statement_late", "answer_late"), share):
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
