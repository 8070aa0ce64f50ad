"""One activation of this replica, from the epoch to the purge: the parts that exist only while it holds the lock.

    its barrier    Opening, Holder   opening.py, holder.py
    published      Publisher         publisher.py   completions, and the published position
    noted          Noting            noting.py      what officers sign about parties
    served         Server            server.py      submissions, where the holder alone serves

No verdict is decided here. Answers are computed from the log once a record is read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import structlog

from ha.ending import Cause, Ending
from ha.errors import HaError
from ha.lock.interface import DatabaseIdentity, Grant
from replica.active.admission_budget import AdmissionBudget
from replica.active.catching_up import read_to_the_end
from replica.active.holder import Holder
from replica.active.noting import Noting
from replica.active.numbers import is_fragmented
from replica.active.opening import Opening
from replica.active.parts import Parts
from replica.active.publisher import Publisher
from replica.active.server import Server
from replica.active.tasks import SessionTasks
from replica.active.watchdog import StallWatchdog
from replica.following.apply import Applied
from replica.notary.errors import InvariantBroken, NotaryError
from replica.notary.granters import Database
from replica.store.interface import ParticipantStore, Pruned

log = structlog.get_logger()


class Activation:
    """Builds the parts and owns their life: `open`, then any use, then `close`. An instance is used once."""

    def __init__(
        self,
        parts: Parts,
        store: ParticipantStore,
        *,
        database: DatabaseIdentity,
        verify_lock: Callable[[], Awaitable[object]],
        grant: Grant | None,
        serves: bool,
    ) -> None:
        """`store` and `verify_lock` work over the lock session; `database` is the identity that it reports, `grant` the
        activation that came with it. `serves`: whether it takes submissions, as the only one."""
        self._parts = parts
        self._store = store
        self._verify_lock = verify_lock
        self._tasks = SessionTasks(parts)
        self._serves = serves
        self.budget = AdmissionBudget(parts.settings)
        self.holder = Holder(parts, Database(database.kind, database.system_identifier, database.timeline))
        self.publisher = Publisher(store, parts.settings, parts.announce, self.budget.note_unpublished)
        self.noting = Noting(parts, self.holder)
        self.server: Server | None = None  # once it serves
        self._watchdog = StallWatchdog(parts, self._oldest_unread, lambda: self.holder.is_connected)
        self._opening = Opening(
            parts,
            store,
            database=database,
            verify_lock=verify_lock,
            grant=grant,
            holder=self.holder,
            publisher=self.publisher,
            tasks=self._tasks,
        )
        self.takes_pauses = grant is None  # a lease's claim is no barrier that could pause service
        self.serving = self.opened = False
        self.end_recorded = False  # the reason why this activation ended is in the database

    @property
    def epoch(self) -> int:
        """The epoch that was granted; 0 before that."""
        return self._opening.epoch

    @property
    def pauses(self) -> bool:
        """Whether its barrier pauses service: then it never serves."""
        return self._opening.pauses

    @property
    def steps_s(self) -> dict[str, float]:
        """How long each step of the opening took, seconds."""
        return self._opening.steps_s

    async def open(self) -> None:
        """Become active, see opening.py. Raises ActivationFailed, or the error of the step that failed."""
        await self._opening.run()
        self.opened = True
        if self.pauses:  # it holds the lock and publishes what was logged before
            return
        if self._serves:
            self.server = Server(self._parts, self.holder, self.holder.writer, self.budget)
            self.server.begin()
        self._tasks.start(self._watchdog.run(), "watch")
        self.serving = True

    def take(self, applied: Applied) -> None:
        """Queue a run's completions, and answer whoever waits for a record of it. Raises InvariantBroken."""
        if self.holder.in_force is None:
            self.holder.note(applied.position)  # published by the opening, together with what lies before
            return
        self.holder.note(applied.position)
        self.publisher.add(applied)
        if self.server is not None:
            self.server.take(applied)
        self.noting.take(applied)
        if self.holder.is_superseded:
            self._parts.step_down(Ending(Cause.SUPERSEDED, "a higher barrier is in force"))
        elif is_fragmented(applied.position):
            self._parts.step_down(Ending(Cause.FRAGMENTED, f"{len(applied.position.seen)} ranges of numbers"))

    def _oldest_unread(self) -> int | None:
        sent = {} if self.server is None else self.server.appender.own.sent
        return min((next(iter(waiting)) for waiting in (sent, self.noting.waiting) if waiting), default=None)

    async def confirm_lock(self) -> None:
        """Return once a statement on the lock session was answered that was sent after this call."""
        await self._verify_lock()

    async def read_to_the_end(self) -> None:
        """Return once every record that was in the log at the call is applied. Raises as catching_up.py."""
        await read_to_the_end(self._parts)

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """Move the bound up to which completions may be deleted; front ends are notified before any deletion."""
        pruned = await self._store.prune(up_to, recorded_before_us)
        self.take_bound(pruned.pruned_to)
        return pruned

    def take_bound(self, pruned_to: int) -> None:
        """Tell front ends the bound that the store has now."""
        self.publisher.note_pruned(pruned_to)
        self._parts.announce()

    async def close(self, reason: str) -> None:
        """Stop serving, wait briefly for answers to what is in flight, purge the rest, and answer it as unknown.

        The reason is stored with the epoch, for the history; `end_recorded` is true if that succeeded.
        """
        self.serving = False
        await self._drain(reason)
        self.publisher.stop()
        self._watchdog.stop()
        ends = [self._tasks.end()] if self.server is None else [self._tasks.end(), self.server.close()]
        await asyncio.gather(*ends)
        self.noting.close()
        await self._tell_end(reason)
        await self.holder.close()

    async def _drain(self, reason: str) -> None:
        """Wait briefly until what was logged is answered and published; a lost session cannot publish any more."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._parts.settings.drain_answers_s):
                if self.server is not None:
                    await self.server.drain(reason)
                if self._tasks.started and not self._tasks.session_over:
                    await self.publisher.flush()

    async def _tell_end(self, reason: str) -> None:
        """Store the reason with the epoch. Bounded in time: a session that does not answer now is closed anyway."""
        if self._tasks.session_over or not self.epoch:
            return
        try:
            async with asyncio.timeout(self._parts.settings.drain_answers_s):
                await self._store.end_epoch(self.epoch, self._parts.name, reason)
            self.end_recorded = True
        except (TimeoutError, HaError, NotaryError, InvariantBroken) as error:  # the next active notes it
            log.info("end_untold", epoch=self.epoch, detail=str(error) or "no answer in time")
