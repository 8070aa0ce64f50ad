"""One replica's core: the election's service and the front ends' handler, over a follower and at most an activation."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

import structlog

from ha.clock import Clock
from ha.election.driver import Role
from ha.election.states import Readiness
from ha.ending import Cause, Ending
from ha.errors import ActivationFailed, HaError
from ha.lock.interface import DatabaseIdentity, LockSession
from replica.active.activation import Activation
from replica.active.estimate import CompletionEstimate
from replica.active.failures import SubmissionFailures
from replica.active.receipt_signer import ReceiptSigner
from replica.active.signer import Signer
from replica.following.apply import Applied
from replica.following.follower import Follower
from replica.following.salvaged import SalvagesFound
from replica.index.interface import Index
from replica.link.interface import PLAIN, Replies, Standing, Terms, Told, refuse_as_passive
from replica.log.interface import RequestLog
from replica.notary.answers import Notarised, Refused, StateStatus
from replica.notary.errors import (
    Code,
    DatabaseSuperseded,
    InvariantBroken,
    LogUnavailable,
    NotActive,
    NotaryError,
    SignerUnavailable,
)
from replica.notary.requests import TX_ID_BYTES, Submission
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.operators.counters import Counters
from replica.settings import CoreSettings
from replica.store.interface import ParticipantStore, Pruned
from replica.telemetry.core_spans import UNTRACED, Trace

log = structlog.get_logger()

_LOOK_UPS_TOGETHER = 1_000


class CoreSession(LockSession, Protocol):
    """The lock session with what the barrier needs to know of the database."""

    async def database_identity(self) -> DatabaseIdentity:
        """Which database cluster grants the epochs."""


SessionT = TypeVar("SessionT", bound=CoreSession)


class Participant(Generic[SessionT]):
    """Ties election, follower and front ends together. Decides nothing about the log: that is the rules' affair."""

    def __init__(
        self,
        *,
        name: str,
        request_log: RequestLog,
        index: Index,
        make_store: Callable[[SessionT], ParticipantStore],
        signer: Signer,
        clock: Clock,
        settings: CoreSettings,
        random_bytes: Callable[[int], bytes] = os.urandom,
        trace: Trace = UNTRACED,
        salvages: Salvages = NO_SALVAGES,
    ) -> None:
        self.name = name
        self._log = request_log
        self._index = index
        self._make_store = make_store
        self._receipt_signer = ReceiptSigner(signer, settings.sign_max_s, self._on_unsigned)
        self._clock = clock
        self._settings = settings
        self._random_bytes = random_bytes
        self._trace = trace
        self._salvages = salvages
        self._salvages_found = SalvagesFound(index, salvages)
        self._estimate = CompletionEstimate(settings.retry_after_s)
        self.counters = Counters()
        self.failures = SubmissionFailures(clock, settings.retry_after_s)
        self.follower = Follower(request_log, index, clock, settings, self._on_applied, trace=trace, salvages=salvages)
        self.activation: Activation | None = None
        self.broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._following: asyncio.Task[None] | None = None
        self._without_session = False
        self._look_ups: deque[tuple[Replies, list[tuple[int, bytes]]]] = deque()
        self._looking_up: asyncio.Task[None] | None = None
        # wired by the composition root, because election and link are built around this object
        self.is_leading: Callable[[], bool] = lambda: False
        self.give_up: Callable[[Ending], None] = lambda ending: None
        self.announce: Callable[[], None] = lambda: None
        self.tell_later: Callable[[int, str], None] = lambda epoch, reason: None
        self.is_barred: Callable[[], bool] = lambda: False

    # ---- life ----

    def start(self) -> None:
        """Begin to follow the log, unless a passive stays away from it."""
        if self._settings.standby == "following":
            self._follow()

    async def stop(self) -> None:
        """Stop following; the activation was closed by the election before."""
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)
            self._following = None
        await self._receipt_signer.drain()

    def _follow(self) -> None:
        if self._following is None:
            self._following = asyncio.create_task(self.guarded(self.follower.run()), name="follow")

    async def guarded(self, work: Awaitable[None]) -> None:
        """Do some work on the log or the index. Its failure ends the replica: no verdict unless both can be trusted."""
        try:
            await work
        except Exception as error:
            self._break(error)

    def _break(self, error: Exception) -> None:
        if not self.broken.done():
            self.broken.set_exception(error)
        code = error.code.name if isinstance(error, NotaryError) else Code.INTERNAL.name
        log.critical("replica_broken", code=code, detail=str(error), exc_info=error)

    # ---- the election's service ----

    async def activate(self, session: SessionT) -> None:
        """Open an activation on the lock session; see `Activation.open` for the order."""
        if self.broken.done():
            raise ActivationFailed("the replica is broken")
        self._follow()
        self.follower.hurry(True)
        identity = await session.database_identity()
        self.activation = Activation(
            name=self.name,
            database=identity,
            request_log=self._log,
            index=self._index,
            follower=self.follower,
            store=self._make_store(session),
            verify_lock=session.confirm,
            receipt_signer=self._receipt_signer,
            clock=self._clock,
            random_bytes=self._random_bytes,
            settings=self._settings,
            estimate=self._estimate,
            failures=self.failures,
            announce=self.announce,
            on_lost=self.give_up,
            on_broken=self._break,
            trace=self._trace,
            salvages=self._salvages,
            salvages_found=self._salvages_found.found,
        )
        try:
            await self._receipt_signer.check()
            await self.activation.open()
        except (LogUnavailable, SignerUnavailable, DatabaseSuperseded) as error:
            cause = Cause.SIGNER if isinstance(error, SignerUnavailable) else Cause.ACTIVATION_FAILED
            raise ActivationFailed(error.detail, cause, error.code.name) from error
        except (NotaryError, InvariantBroken) as error:  # as if the follower had met it: damage sets the index aside
            self._break(error)
            raise
        steps_ms = {step: round(1000 * took_s, 1) for step, took_s in self.activation.steps_s.items()}
        log.info("activated", epoch=self.activation.epoch, steps_ms=steps_ms)

    async def step_down(self, ending: Ending) -> None:
        """Close the activation: refuse, drain, purge, answer unknown, close the log's writer."""
        self.counters.note_step_down(ending.cause)
        self.announce()
        if self.activation is not None:
            await self.activation.close(str(ending))
            self.leave_word(ending)
            self.counters.note_activation_ended(self.activation)
            self.activation = None
        self.follower.hurry(False)
        if self._settings.standby == "disconnected":
            await self.stop()
        log.info("stepped_down", cause=ending.cause.value, code=ending.code or None, reason=str(ending))

    def leave_word(self, ending: Ending) -> None:
        """Leave word on the end of an activation that could not be told on the lock session."""
        if self.activation is not None and self.activation.epoch and not self.activation.end_told:
            self.tell_later(self.activation.epoch, str(ending))

    def readiness(self) -> Readiness:
        """Whether to ask for the lock, and how far behind the index is."""
        if self._settings.standby == "disconnected" and self._following is None:
            return Readiness(True, 0, self.is_barred())
        return Readiness(self.follower.reaches_log(), self.follower.lag_records, self.is_barred())

    def role_changed(self, role: Role, reason: str) -> None:
        """Tell front ends and people."""
        log.info("role_changed", role=role.value, reason=reason, epoch=self.epoch)
        self.announce()

    def session_changed(self, problem: str | None) -> None:
        """Tell people, once until there is a session again."""
        if problem is not None and not self._without_session:
            log.warning("lock_session_unavailable", detail=problem)
        self._without_session = problem is not None

    # ---- operators ----

    async def prune(self, up_to: int | None, keep_s: float) -> Pruned:
        """See ParticipantStore.prune; what was recorded in the last `keep_s` seconds stays, and at least what
        deduplication may still ask for. Raises NotActive, and HaError when the lock session is lost meanwhile."""
        activation = self.activation
        if activation is None or not self._serves():
            raise NotActive("only the active replica moves the bound")
        kept_s = max(keep_s, self._settings.deduplication_max_s)
        return await activation.prune(up_to, self._clock.wall_us() - round(kept_s * 1e6))

    # ---- the front ends' handler ----

    @property
    def epoch(self) -> int:
        """The newest epoch this replica knows of."""
        position = self.follower.position
        known = 0 if position is None else position.epoch
        return known if self.activation is None else max(known, self.activation.epoch)

    @property
    def estimate_s(self) -> float:
        """How long a request that came now would take at most, as clients are told; seconds."""
        return self._estimate.wait_s(0 if self.activation is None else self.activation.budget.states)

    def standing(self) -> Standing:
        """The core's word on its role, as of now."""
        activation = self.activation
        if activation is None or not self._serves():
            return Standing(False, self.epoch, self._settings.retry_after_s)
        publisher = activation.publisher
        return Standing(
            True,
            self.epoch,
            self._settings.retry_after_s,
            publisher.ledger_end,
            publisher.pruned_to,
            self.estimate_s,
        )

    def submit(self, replies: Replies, batch: list[tuple[int, Submission]], terms: Terms = PLAIN) -> None:
        """Take submissions from a front end."""
        activation = self.activation
        if activation is None or not self._serves():
            replies.send([(ticket, refuse_as_passive(self.standing())) for ticket, _ in batch])
        else:
            activation.submit(replies, batch, terms)

    def look_up(self, replies: Replies, batch: list[tuple[int, bytes]]) -> None:
        """Answer whether transactions were notarised, and what consumed states."""
        self._look_ups.append((replies, batch))
        if self._looking_up is None or self._looking_up.done():
            self._looking_up = asyncio.create_task(self._answer_look_ups(), name="look_up")

    async def _answer_look_ups(self) -> None:
        """Those that arrived meanwhile share the next question to the lock: a flood of them must not crowd it."""
        while self._look_ups:
            asked: list[tuple[Replies, list[tuple[int, bytes]]]] = []
            names: dict[bytes, None] = {}
            while self._look_ups and len(names) < _LOOK_UPS_TOGETHER:
                asked.append(self._look_ups.popleft())
                names.update((name, None) for _, name in asked[-1][1])
            found = await self._look_up(list(names))
            for replies, batch in asked:
                replies.send([(ticket, found[name]) for ticket, name in batch])

    async def _look_up(self, names: list[bytes]) -> dict[bytes, Told]:
        """ "Not found" is said only once the lock has answered a question sent after the look-up arrived, so that a
        deposed replica cannot deny what its successor did; and by who has read to an end of the log that was asked for
        after it, because two primaries are two locks."""
        activation = self.activation
        try:
            if activation is not None and self._serves():
                await activation.confirm_lock()
                found = await self._find(names)
                missing = [name for name, told in found.items() if _denies(told)]
                if not missing:
                    return found
                await activation.read_to_the_end()
                if self._serves():
                    return found | await self._find(missing)
        except (HaError, SignerUnavailable, LogUnavailable) as error:
            log.info("look_up_unconfirmed", detail=str(error))
        except Exception as error:
            self._break(error)
        return dict.fromkeys(names, refuse_as_passive(self.standing()))

    async def _find(self, names: list[bytes]) -> dict[bytes, Told]:
        """What the index has of transactions and of states; they differ in length."""
        tx_ids = [name for name in names if len(name) == TX_ID_BYTES]
        states = [name for name in names if len(name) != TX_ID_BYTES]
        return {**await self._find_transactions(tx_ids), **self._find_states(states)}

    def _find_states(self, states: list[bytes]) -> dict[bytes, Told]:
        values = self._index.lookup([STATE_KEY + state for state in states])
        return {
            state: StateStatus(state, value[:32], int.from_bytes(value[32:], "big")) if value else StateStatus(state)
            for state, value in zip(states, values, strict=True)
        }

    async def _find_transactions(self, tx_ids: list[bytes]) -> dict[bytes, Told]:
        values = self._index.lookup([TX_KEY + tx_id for tx_id in tx_ids])
        found = [(tx_id, value) for tx_id, value in zip(tx_ids, values, strict=True) if value]
        receipts = await self._receipt_signer.receipts([(tx_id, value[:32]) for tx_id, value in found])
        answers: dict[bytes, Told] = {tx_id: Refused(Code.TX_NOT_FOUND.name, tx_id) for tx_id in tx_ids}
        for (tx_id, value), receipt in zip(found, receipts, strict=True):
            offset = int.from_bytes(value[32:], "big")
            answers[tx_id] = Notarised(tx_id, value[:32], offset, None, False, receipt)
        return answers

    def _on_unsigned(self, reason: str) -> None:
        self.give_up(Ending(Cause.SIGNER, reason, Code.SIGNER_UNAVAILABLE.name))  # another's token may be well

    def _serves(self) -> bool:
        return self.activation is not None and self.activation.serving and self.is_leading()

    def _on_applied(self, applied: Applied) -> None:
        self.counters.note_applied(applied)
        if self.activation is not None:
            self.activation.on_applied(applied)


def _denies(told: Told) -> bool:
    """Whether the answer is that nothing was found."""
    return isinstance(told, Refused) or (isinstance(told, StateStatus) and told.consumed_by is None)
