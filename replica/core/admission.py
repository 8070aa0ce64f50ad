"""Admission: bounds what is in flight, records commands before their records are logged, and logs them.

A command is pending in the shared database before its record is appended, so that whoever is active next knows of
every submission that was accepted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec

from ha.clock import Clock
from replica.core.estimate import CompletionEstimate
from replica.core.publish import Publisher
from replica.core.settings import CoreSettings
from replica.link.interface import Replies
from replica.notary.answers import Answer, NotNow, Refused
from replica.notary.canonical import change_id, summarise
from replica.notary.errors import Code
from replica.notary.requests import Submission
from replica.store.interface import Admission as Deduplication
from replica.store.interface import Admitted, Command, ParticipantStore


class Waiting(msgspec.Struct):
    """A submission on its way, and who waits for its answer."""

    replies: Replies
    ticket: int
    submission: Submission
    command: Command
    states: int


class Load:
    """How much is in flight: from admission until the completion is published."""

    def __init__(self, settings: CoreSettings) -> None:
        self._settings = settings
        self.submissions = 0
        self.states = 0

    def enter(self, states: int) -> bool:
        """Take one submission in, unless that passes a bound."""
        fits = (
            self.submissions < self._settings.in_flight_max
            and self.states + states <= self._settings.states_in_flight_max
        )
        if fits:
            self.submissions += 1
            self.states += states
        return fits

    def leave(self, submissions: int, states: int) -> None:
        """So much is done with."""
        self.submissions -= submissions
        self.states -= states


class Admission:
    """The queue of one activation between front ends and log."""

    def __init__(
        self,
        *,
        store: ParticipantStore,
        publisher: Publisher,
        clock: Clock,
        settings: CoreSettings,
        load: Load,
        estimate: CompletionEstimate,
        append: Callable[[Waiting], None],
        answer_accepted: Callable[[Sequence[tuple[Waiting, int]]], None],
    ) -> None:
        self._store = store
        self._publisher = publisher
        self._clock = clock
        self._settings = settings
        self._load = load
        self._estimate = estimate
        self._append = append
        self._answer_accepted = answer_accepted
        self._queue: deque[Waiting] = deque()
        self.admitting: list[Waiting] = []  # what the database is being told of, and may know already
        self._arrived = asyncio.Event()
        self._stopping = False

    def offer(self, batch: Sequence[tuple[int, Submission]], replies: Replies) -> None:
        """Queue a front end's submissions; those past the bounds are answered at once."""
        refused: list[tuple[int, Answer]] = []
        now_us = self._clock.wall_us()
        for ticket, submission in batch:
            tx_id, digest, states = summarise(submission.request)
            if not self._load.enter(states):
                refused.append((ticket, self._overloaded()))
                continue
            command = Command(
                change_id(submission.user_id, submission.command_id, submission.act_as),
                submission.user_id,
                submission.command_id,
                submission.act_as,
                submission.submission_id,
                tx_id,
                digest,
                now_us,
            )
            self._queue.append(Waiting(replies, ticket, submission, command, states))
        if refused:
            replies.send(refused)
        if self._queue:
            self._arrived.set()

    async def run(self) -> None:
        """Admit until stopped; ends early only with an error of the store."""
        while not self._stopping:
            await self._arrived.wait()
            if self._may_linger():
                await self._clock.sleep_s(self._settings.admit_linger_s)
            count = min(len(self._queue), self._settings.admit_batch_max)
            self.admitting = [self._queue.popleft() for _ in range(count)]
            if not self._queue:
                self._arrived.clear()
            if self.admitting:
                await self._admit(self.admitting)
                self.admitting = []

    @property
    def queued(self) -> int:
        """Submissions that wait for the database round trip of their admission."""
        return len(self._queue)

    def _may_linger(self) -> bool:
        """Under load, a batch that is not full yet is worth waiting for: each costs a round trip and a write."""
        settings = self._settings
        busy = self._load.submissions >= settings.admit_linger_from
        return busy and len(self._queue) < settings.admit_batch_max and not self._stopping

    def stop(self) -> None:
        """Let `run` end once the batch in hand is done with."""
        self._stopping = True
        self._arrived.set()

    def close_queue(self) -> list[Waiting]:
        """Empty the queue, and return what was in it: the database was not told of it."""
        untouched = list(self._queue)
        self._queue.clear()
        self._arrived.clear()
        return untouched

    async def _admit(self, batch: list[Waiting]) -> None:
        outcomes = await self._ask(batch)
        in_flight = [waiting for waiting, found in outcomes if found.outcome is Admitted.IN_FLIGHT]
        if in_flight and not self._publisher.decided_changes().isdisjoint(w.command.change_id for w in in_flight):
            # decided by the log already, only not published: publish, then the database knows the answer
            await self._publisher.flush()
            again = dict(zip(map(id, in_flight), (found for _, found in await self._ask(in_flight)), strict=True))
            outcomes = [(waiting, again.get(id(waiting), found)) for waiting, found in outcomes]
        accepted: list[tuple[Waiting, int]] = []
        answers: list[tuple[Waiting, Answer]] = []
        for waiting, found in outcomes:
            if found.outcome is Admitted.FRESH:
                self._append(waiting)
                continue
            self._load.leave(1, waiting.states)
            if found.outcome is Admitted.ACCEPTED and found.notarised_offset is not None:
                accepted.append((waiting, found.notarised_offset))
            elif found.outcome is Admitted.REUSED:
                answers.append((waiting, Refused(Code.COMMAND_ID_REUSED.name, waiting.command.tx_id)))
            else:
                answers.append((waiting, self._in_flight()))
        send(answers)
        if accepted:
            self._answer_accepted(accepted)

    async def _ask(self, batch: list[Waiting]) -> list[tuple[Waiting, Deduplication]]:
        since_us = self._clock.wall_us() - int(self._settings.deduplication_max_s * 1e6)
        found = await self._store.admit([waiting.command for waiting in batch], since_us)
        return list(zip(batch, found, strict=True))

    def _overloaded(self) -> NotNow:
        wait_s = self._estimate.wait_s(self._load.states)
        detail = f"{self._load.submissions} submissions with {self._load.states} states are in flight"
        return NotNow(Code.OVERLOADED.name, detail, wait_s)

    def _in_flight(self) -> NotNow:
        wait_s = self._estimate.wait_s(self._load.states)
        return NotNow(Code.SUBMISSION_IN_FLIGHT.name, "an earlier submission of this command is on its way", wait_s)


def send(answers: Iterable[tuple[Waiting, Answer]]) -> None:
    """Give answers out, one call per front end."""
    by_front_end: dict[Replies, list[tuple[int, Answer]]] = {}
    for waiting, answer in answers:
        by_front_end.setdefault(waiting.replies, []).append((waiting.ticket, answer))
    for replies, batch in by_front_end.items():
        replies.send(batch)
