"""One activation of this replica, from the epoch to the purge: the parts that exist only while it is active.

Each part owns one step of a submission:

    offered    Intake        intake.py       bounds, the users' turns
    admitted   Admission     admission.py    not known to the index, nor on its way
    appended   Appender      appending.py    sequence number, stamp, the log
    read back  ReadBack      read_back.py    what the follower applied meets who waits
    answered   Answering     answering.py    receipt and answer
    published  Publisher     publisher.py    its completion, and the published position

What officers sign about parties is logged and read back by Noting (noting.py).

No verdict is decided here. Answers are computed from the log once a record is read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from ha.errors import HaError
from ha.lock.interface import DatabaseIdentity, Grant
from replica.active.admission import Admission
from replica.active.answering import Answering
from replica.active.appending import Appender
from replica.active.catching_up import read_to_the_end
from replica.active.intake import Intake
from replica.active.noting import Noting
from replica.active.opening import Opening
from replica.active.parts import Parts
from replica.active.publisher import Publisher
from replica.active.read_back import ReadBack
from replica.active.tasks import SessionTasks
from replica.active.waiting import send
from replica.active.watchdog import StallWatchdog
from replica.notary.answers import NotNow
from replica.notary.errors import Code, InvariantBroken, NotaryError
from replica.store.interface import ParticipantStore, Pruned

log = structlog.get_logger()

_DRAIN_TICK_S = 0.005


class Activation:
    """Builds the parts and owns their life: `open`, then any use, then `close`. An instance is used once."""

    def __init__(
        self,
        parts: Parts,
        store: ParticipantStore,
        *,
        database: DatabaseIdentity,
        verify_lock: Callable[[], Awaitable[object]],
        grant: Grant | None = None,
    ) -> None:
        """`store` and `verify_lock` work over the lock session; `database` is the identity that it reports, `grant` the
        activation that came with it."""
        self._parts = parts
        self._store = store
        self._verify_lock = verify_lock
        self._tasks = SessionTasks(parts)
        self.intake = Intake(parts)
        self.appender = Appender(parts, str(database))
        self.publisher = Publisher(store, parts.settings, parts.announce, self.intake.budget.note_unpublished)
        answering = Answering(parts, self.appender, self.intake.budget)
        self.read_back = ReadBack(parts, self.appender, self.intake, answering, self.publisher)
        self.noting = Noting(parts, self.appender)
        self.admission = Admission(
            parts, store, intake=self.intake, appender=self.appender, answering=answering, publisher=self.publisher
        )
        self._watchdog = StallWatchdog(
            parts, self.appender.waiting, self.noting.waiting, is_connected=lambda: self.appender.is_connected
        )
        self._opening = Opening(
            parts,
            store,
            database=database,
            verify_lock=verify_lock,
            grant=grant,
            appender=self.appender,
            read_back=self.read_back,
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
        self._tasks.start(self.admission.run_aside(), "aside")
        self._tasks.start(self.admission.run(), "admit")
        self._tasks.start(self._watchdog.run(), "watch")
        self.serving = True

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
        retry_after_s = self._parts.settings.retry_after_s
        refused = NotNow(Code.NOT_ACTIVE.name, "the replica stepped down", retry_after_s)
        send((waiting, refused) for waiting in self.intake.close())
        await self._drain()
        self.intake.stop()
        self.publisher.stop()
        self._watchdog.stop()
        await self._tasks.end()
        self.noting.close()
        await self._tell_end(reason)
        await self.appender.close()
        unknown = NotNow(Code.OUTCOME_UNKNOWN.name, "the replica stepped down", retry_after_s)
        send((waiting, unknown) for waiting in (*self.admission.admitting, *self.appender.waiting.values()))
        self.appender.waiting.clear()

    async def _drain(self) -> None:
        """Wait briefly until what was logged is answered and published; a lost session cannot publish any more."""
        tasks, waiting = self._tasks, self.appender.waiting
        try:
            async with asyncio.timeout(self._parts.settings.drain_answers_s):
                while waiting or (self.admission.admitting and not tasks.session_over):
                    await self._parts.clock.sleep_s(_DRAIN_TICK_S)
                if tasks.started and not tasks.session_over:
                    await self.publisher.flush()
        except TimeoutError:
            pass

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
