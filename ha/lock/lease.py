"""The lock session whose server is a log: leadership as a lease, with no lock in any database.

The barrier that opens an activation is the claim. The log orders claims, and each reader judges them alike: the first
one wins, and one is void if the holder wrote after what the claimant had read. `silence.py` decides when to claim.
The holder shows that it lives by records of its own; a question to this lock is such a record, read back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol, TypeVar

from ha.clock import Clock
from ha.errors import LeaseUnavailable, LockLost, ScopeMismatch
from ha.invariant import InvariantBroken
from ha.lock.interface import (
    CLOSED,
    NEVER_S,
    DatabaseIdentity,
    Grant,
    LockAnswer,
    LockOwner,
    LockView,
    ReleaseNote,
    ServerLease,
)
from ha.lock.session import DatabaseSession
from ha.lock.silence import LeaseView, Silence, confirmed, heard, is_free, question_at_s
from ha.settings import ElectionSettings

T = TypeVar("T")
GIVE_BACK_MAX_S = 0.25  # longest wait of a session that is closed while it holds the lease


class LeaseLog(Protocol):
    """The log as far as a lease needs it. Methods wait for as long as the log takes; the session sets limits.

    They raise LockLost when the log cannot be asked.
    """

    def view(self) -> LeaseView | None:
        """The lease as far as the log was read; None before the log was reached."""

    async def moved(self) -> None:
        """Return when more of the log was read than at the call, or when the holder was seen to have ended."""

    async def catch_up(self) -> None:
        """Return when all was read that the log had at the call."""

    async def confirm_end(self) -> None:
        """The same, with proof that the log takes and returns records at this moment."""

    async def claim(self, name: str, view: LeaseView) -> bytes | None:
        """Claim the lease that looks like this; the activation id when the claim is in force, None when it is void.

        From now on until `end`, the other replicas may be told if this process ends.
        """

    async def show_life(self, activation_id: bytes, number: int) -> bool:
        """Log a sign of life, numbered from 0, and read it back. False when that activation is not in force."""

    async def release(self, view: LeaseView, note: ReleaseNote | None) -> None:
        """Log that the lease is free. None: nobody gave it up in order. A newer claim makes this void."""

    def end(self) -> None:
        """The session has ended, and nobody leads by it: what was handed over and not sent is dropped.

        May be repeated.
        """


class LeaseConnection:
    """One session's use of the log: what is asked ends when the session does."""

    def __init__(self, log: LeaseLog) -> None:
        self.answers = 0
        self.log = log
        self.activation_id: bytes | None = None  # of our claim, once it is in force
        self._ended = asyncio.Event()

    async def run(self, question: Awaitable[T]) -> T:
        """Its answer. Raises LockLost when the session ends first, and what the question raises."""
        asked = asyncio.ensure_future(question)
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait({asked, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not asked.done() or asked.cancelled():
                raise LockLost("the session was closed")
            answer = asked.result()
            self.answers += 1
            return answer
        finally:
            for task in (asked, ended):
                task.cancel()
            await asyncio.gather(asked, ended, return_exceptions=True)

    async def ask(self) -> LeaseView:
        """The lease at this moment. Raises LockLost where this session held it and does no longer."""
        await self.run(self.log.catch_up())
        view = self.log.view()
        if view is None:
            raise LockLost("the log was not reached yet")
        if self.activation_id is not None and view.activation_id != self.activation_id:
            raise LockLost(f"epoch {view.epoch} is in force, and not ours")
        return view

    def settled(self) -> bool:
        """See Connection."""
        return not self._ended.is_set()

    def hang_up(self) -> None:
        """See Connection."""
        self._ended.set()

    def finish(self) -> None:
        """See Connection."""
        self._ended.set()
        self.log.end()


class LeaseSession(DatabaseSession[LeaseConnection]):
    """See LockSession."""

    unavailable = LeaseUnavailable

    def __init__(
        self,
        log: LeaseLog,
        *,
        name: str,
        settings: ElectionSettings,
        clock: Clock,
        scope: str | None = None,
        gives_back: Callable[[], bool] = lambda: True,
    ) -> None:
        """`scope`: the log's identity, where it is known. `gives_back`: whether a holder that ends in order frees the
        lease in the log. Not where others write under the activation as well, and none of them may claim the lease: a
        release would stop them. It runs out then.
        """
        super().__init__(name=name, settings=settings, clock=clock)
        self._log = log
        self._scope = scope
        self._gives_back = gives_back
        self._silence: Silence | None = None
        self._claim: LeaseView | None = None  # as the log showed it when our claim came into force
        self._signs_sent = 0
        self._signs: set[asyncio.Task[float]] = set()  # on their way
        self._sent_at_s = NEVER_S  # the newest sign
        self._asked_at_s = NEVER_S  # when the election asked for the newest one
        self._beats: list[asyncio.Task[None]] = []  # one, from the claim on
        self._released = False
        self._heard_epoch = 0  # releases up to this epoch are no news
        self._ended_epoch = 0  # the same for holders that ended

    @property
    def grant(self) -> Grant | None:
        """See LockSession."""
        return None if self._claim is None else Grant(self._claim.epoch, self._claim.activation_id)

    @property
    def server_lease(self) -> ServerLease:
        """See LockSession."""
        return counted_lease(self._settings)

    async def _connect(self) -> LeaseConnection:
        while self._log.view() is None:
            await self._log.moved()
        return LeaseConnection(self._log)

    async def _check(self) -> None:
        async with self.statement("lock.check") as connection:
            view = await connection.ask()
            if self._scope not in (None, view.log_id):
                raise ScopeMismatch(f"the configured scope is {self._scope!r}, the log is {view.log_id!r}")
            self._heard_epoch = view.epoch

    def _is_unknown(self, error: BaseException) -> bool:
        return isinstance(error, LockLost | asyncio.CancelledError | GeneratorExit)

    async def try_lock(self) -> LockAnswer:
        """See LockSession."""
        if self._claim is not None:
            raise InvariantBroken("the lease is held already")
        heard_epoch = self._heard_epoch  # what the election knew when it asked
        view, free = await self._look_closely()
        if free and (view.holder is None or view.holder_ended):  # perhaps only as far as was read
            await self._confirm_end()
            view, free = await self._look_closely()
        asked_at_s = self._clock.boottime_s()
        if not free or self._is_out_of_turn(view, heard_epoch):
            return LockAnswer(False, asked_at_s, _owner(view))
        async with self.statement("lock.try") as connection:
            activation_id = await connection.run(self._log.claim(self._name, view))
            if activation_id is None:
                raise LockLost("the claim is void: another came first, or the holder wrote again")
            connection.activation_id = activation_id
            self._claim = await connection.ask()
            self._beats.append(asyncio.create_task(self._beat(self._claim), name="lease beat"))
        return LockAnswer(True, asked_at_s, released=self._note_in(view))

    def _is_out_of_turn(self, view: LeaseView, heard_epoch: int) -> bool:
        """Whether the lease was just released for another replica, as the election is about to hear.

        A claim could be given back, as a lock can, but the claim of the replica whose turn it is would be void by then.
        """
        note = self._note_in(view)
        return note is not None and note.to not in (None, self._name) and view.epoch > heard_epoch

    def _note_in(self, view: LeaseView) -> ReleaseNote | None:
        """How another replica gave the lease up in order. Who gave it up is not kept away by its own note, which no
        other kind of lock tells it either."""
        return None if view.released is None or view.released.by == self._name else view.released

    async def look(self) -> LockView:
        """See LockSession."""
        view, free = await self._look_closely()
        return LockView(None if free else _owner(view), self._note_in(view))

    async def _look_closely(self) -> tuple[LeaseView, bool]:
        """The lease, and whether it may be claimed. Asks whether the log works when the holder is due."""
        view = await self._ask()
        now_s = self._clock.boottime_s()
        self._silence = heard(self._silence, view, now_s)
        if view.holder is not None and now_s >= question_at_s(self._silence, self._settings):
            await self._confirm_end()
            view = await self._ask()
            self._silence = heard(confirmed(self._silence, now_s, self._settings), view, self._clock.boottime_s())
        return view, is_free(view, self._silence, self._settings)

    async def _ask(self) -> LeaseView:
        async with self.statement("lock.look") as connection:
            return await connection.ask()

    async def _confirm_end(self) -> None:
        """Returns when the log has taken and returned a record. Raises LockLost when it has not in time."""
        async with self.statement("lock.see_the_log_move") as connection:
            await connection.run(self._log.confirm_end())

    async def confirm(self) -> float:
        """See LockSession: a sign of life that was read back, with our claim still in force."""
        async with self.statement("lock.confirm") as connection:
            if self._claim is None:
                raise LockLost("this session does not hold the lease")
            self._asked_at_s = self._clock.boottime_s()
            return await connection.run(asyncio.shield(self._send_sign(self._claim)))

    async def _beat(self, claim: LeaseView) -> None:
        """Send signs of life that the election is late to ask for: in a busy process its turns come late, one after the
        other. Never for an election that asks no more."""
        late_s, asks_s = beat_s(self._settings), self._settings.confirmed_age_max_s
        while True:
            now_s = self._clock.boottime_s()
            if now_s >= self._sent_at_s + late_s and now_s < self._asked_at_s + asks_s:
                self._send_sign(claim)
            await self._clock.sleep_s(max(self._sent_at_s + late_s - now_s, self._settings.tick_s))

    def _send_sign(self, claim: LeaseView) -> asyncio.Task[float]:
        """Log a sign of life. The task returns when it was sent, once it was read back.

        A log under load returns records late. So signs do not wait for one another: the newest that came back is then
        one wait and a heartbeat old, not two waits. What a claim may last bounds how many are on their way.
        """
        self._sent_at_s = self._clock.boottime_s()
        sign = asyncio.create_task(self._sign(claim, self._signs_sent, self._sent_at_s), name="sign of life")
        self._signs_sent += 1
        self._signs.add(sign)
        sign.add_done_callback(self._sign_ended)
        return sign

    async def _sign(self, claim: LeaseView, number: int, sent_at_s: float) -> float:
        if not await self._log.show_life(claim.activation_id, number):
            raise LockLost("a newer activation is in force")
        self._answered_at_s = max(self._answered_at_s, sent_at_s)
        return sent_at_s

    def _sign_ended(self, sign: asyncio.Task[float]) -> None:
        self._signs.discard(sign)
        if not sign.cancelled():
            sign.exception()  # told by the question that waits for it; any later one fails for the same reason

    def _shut(self) -> None:
        """See DatabaseSession. Nothing is sent any more."""
        for task in (*self._signs, *self._beats):
            task.cancel()
        super()._shut()

    async def release(self, to: str | None = None) -> None:
        """See LockSession. All replicas read one note, and whom it is for; so none is announced before."""
        if to is None and not self._gives_back():
            return
        async with self.statement("lock.release") as connection:
            await connection.run(self._log.release(self._held(), ReleaseNote(self._name, to)))
            self._released = True

    async def wait_release(self) -> ReleaseNote:
        """See LockSession. A holder that ended gives the lease up as well."""
        while True:
            view = self._log.view()
            if view is not None and view.released is not None and view.epoch > self._heard_epoch:
                self._heard_epoch = view.epoch
                if view.released.by != self._name:
                    return view.released
            if view is not None and view.holder is not None and view.holder_ended and view.epoch > self._ended_epoch:
                self._ended_epoch = view.epoch
                return ReleaseNote(view.holder, None)
            await self._log.moved()

    async def close(self, why: str = CLOSED) -> None:
        """See LockSession. A lease that was not released is given back, if the log takes that; else it runs out."""
        if self._gives_back() and not self.closed and self._claim is not None and not self._released:
            self._released = True
            with suppress(TimeoutError, LockLost):
                async with asyncio.timeout(GIVE_BACK_MAX_S):
                    await self._log.release(self._claim, None)
        await super().close(why)

    async def database_identity(self) -> DatabaseIdentity:
        """The log: it grants the epochs."""
        async with self.statement("lock.identity") as connection:
            view = self._claim or await connection.ask()
        return DatabaseIdentity("lease", view.log_id, max(1, view.witnessed))

    def _held(self) -> LeaseView:
        if self._claim is None:
            raise InvariantBroken("this session does not hold the lease")
        return self._claim


def counted_lease(settings: ElectionSettings) -> ServerLease:
    """How long a silence frees the lease. No server says so: every replica counts alike."""
    return ServerLease(settings.lease_s, True, "counted by each replica that follows the log")


def _owner(view: LeaseView) -> LockOwner | None:
    return None if view.holder is None else LockOwner(view.epoch, view.holder)


def beat_s(settings: ElectionSettings) -> float:
    """Without a sign of life for so long, the election is late: it asks at the first look of its clock that a heartbeat
    is over."""
    return settings.heartbeat_s + 2 * settings.tick_s
