"""Notary workers on virtual time, beside whole cores that take turns in holding the lock (core_world.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

from replica.active.estimate import CompletionEstimate
from replica.active.failures import SubmissionFailures
from replica.active.fitness import Limits
from replica.active.look_ups import LookUps
from replica.active.parts import Parts
from replica.active.places import Places
from replica.active.receipt_signer import ReceiptSigner
from replica.active.worker import Worker
from replica.following.apply import Applied
from replica.following.follower import Follower
from replica.following.mark_check import MarkCheck
from replica.following.salvaged import SalvagesFound
from replica.index.memory import MemoryIndex
from replica.link.interface import (
    DEFAULT_OPTIONS,
    LogQuestion,
    Replies,
    Standing,
    SubmitOptions,
    TicketedLookUp,
    TicketedSubmission,
    refuse_as_passive,
)
from replica.link.memory import MemoryLink
from replica.log.beginning import genesis_of
from replica.log.memory import Delivery, MemoryLog
from replica.marks.keeper import MarkKeeper
from replica.marks.seen_file import MemorySeenFile
from replica.notary.answers import Answer
from replica.notary.errors import StoreUnavailable
from replica.notary.requests import Submission
from replica.notary.salvage import NO_SALVAGES
from replica.store.memory import MemoryDesk
from replica.telemetry.core_spans import UNTRACED
from tests.worlds.beginning import LEDGER
from tests.worlds.core_world import SIGNER, Shared, signed_for
from tests.worlds.ha_world import LoopClock

LIMITS = Limits(lag_records_max=1_000, unread_max_s=2.0)


class WorkerClock(LoopClock):
    """A clock whose wall time can be set apart from that of the others."""

    ahead_us = 0

    def wall_us(self) -> int:
        return super().wall_us() + self.ahead_us


class WorkerReplica:
    """A follower, a worker over it, and the front end's side of the link: a replica that never asks for the lock."""

    def __init__(self, shared: Shared, name: str, delivery: Callable[[], Delivery] = Delivery) -> None:
        self.shared, self.name = shared, name
        self.clock = WorkerClock()
        self.index = MemoryIndex()
        self.log = MemoryLog(shared.topic, delivery)
        self.broken: list[Exception] = []
        self.database_is_away = False
        self.database = shared.database  # another one after a promotion that this replica has seen
        signer = ReceiptSigner(SIGNER, shared.core.sign_max_s, lambda _: None)
        self.follower = Follower(self.log, self.index, self.clock, shared.core, self._on_applied, require=genesis_of)
        self.follower.hurry(True)
        self.places = Places()
        marks = MarkKeeper(name, MemorySeenFile(), self.clock)
        self.mark_check = MarkCheck(
            self.log, self.follower, marks, NO_SALVAGES, clock=self.clock, retry_s=shared.core.log_retry_s
        )
        parts = Parts(
            name=name,
            request_log=self.log,
            index=self.index,
            follower=self.follower,
            receipt_signer=signer,
            places=self.places,
            clock=self.clock,
            random_bytes=Random(name).randbytes,
            settings=shared.core,
            estimate=CompletionEstimate(shared.core.retry_after_s),
            failures=SubmissionFailures(self.clock, shared.core.retry_after_s),
            salvages=NO_SALVAGES,
            salvages_found=SalvagesFound(self.index, NO_SALVAGES),
            mark_check=self.mark_check,
            why_exposed=lambda: None,
            trace=UNTRACED,
            announce=lambda: None,
            step_down=lambda _: None,
            fail=self.broken.append,
        )
        self.worker = Worker(parts, self._desk, LIMITS, shared.election.clock_skew_max_s)
        self.look_ups = LookUps(
            self.index,
            signer,
            lambda: self.worker if self.worker.is_serving else None,
            lambda: refuse_as_passive(self.standing()),
            self.broken.append,
            places=self.places,
        )
        self.link = MemoryLink(_Door(self))
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        works = (self._follow(), self.mark_check.run(), self.worker.run())
        self._tasks = [asyncio.create_task(work) for work in works]

    async def _follow(self) -> None:
        try:
            await self.follower.run()
        except Exception as error:
            self.broken.append(error)

    async def stop(self) -> None:
        for task in reversed(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def until_serving(self) -> None:
        async with asyncio.timeout(60):
            while not self.worker.is_serving:
                await asyncio.sleep(0.01)

    async def submit(self, *submissions: Submission, options: SubmitOptions = DEFAULT_OPTIONS) -> list[Answer]:
        return await self.link.submit([signed_for(options, one) for one in submissions], options)

    def _on_applied(self, applied: Applied) -> None:
        self.places.note(applied)
        self.worker.take(applied)

    @asynccontextmanager
    async def _desk(self) -> AsyncIterator[MemoryDesk]:
        await self._travel()
        yield MemoryDesk(
            self.database, lambda: str(self.shared.lock_server.identity), self.shared.clock.wall_us, self._travel
        )

    async def _travel(self) -> None:
        await asyncio.sleep(0.001)
        if self.database_is_away:
            raise StoreUnavailable("the database is away")

    def standing(self) -> Standing:
        return Standing(self.worker.is_serving, 1, 0.1, self.worker.ledger_end, self.worker.pruned_to, ledger_id=LEDGER)


class _Door:
    """What front ends ask. See Handler."""

    def __init__(self, replica: WorkerReplica) -> None:
        self._replica = replica

    def standing(self) -> Standing:
        return self._replica.standing()

    def submit(
        self, replies: Replies, batch: list[TicketedSubmission], options: SubmitOptions = DEFAULT_OPTIONS
    ) -> None:
        server = self._replica.worker.server
        if server is not None and not server.closing:
            server.intake.offer(batch, replies, options)
        else:
            replies.send([(ticket, refuse_as_passive(self.standing())) for ticket, _ in batch])

    def look_up(self, replies: Replies, batch: list[TicketedLookUp]) -> None:
        self._replica.look_ups.ask(replies, batch)

    def ask_log(self, replies: Replies, ticket: int, question: LogQuestion) -> None:
        raise NotImplementedError
