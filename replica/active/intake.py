"""Offered: the queue before admission. Bounds what is in flight, and serves users in turns.

Queued submissions are known here only: a server that ends refuses them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from replica.active.admission_budget import AdmissionBudget, weight_of
from replica.active.fair_queue import FairQueue
from replica.active.parts import Parts
from replica.active.waiting import Waiting
from replica.link.interface import Replies, SubmitOptions
from replica.notary.answers import Answer, NotNow
from replica.notary.canonical import change_id, summarise
from replica.notary.codes import Code
from replica.notary.requests import Submission, check_command, check_submission_id
from replica.store.interface import Command

PIPELINE_STATES_MIN = 8_000  # held also by a slow machine, and while no throughput is known: batches stay worth it


class Sharing(Protocol):
    """Who serves. `sharers`: how many replicas do now, this one among them."""

    sharers: int


class Intake:
    """Takes submissions with `offer`, returns them with `next_batch`; `leave` reports those that are finished."""

    def __init__(self, parts: Parts, budget: AdmissionBudget, sharing: Sharing) -> None:
        self._sharing = sharing
        self._settings = parts.settings
        self._clock = parts.clock
        self._estimate = parts.estimate
        self._failures = parts.failures
        self._follower = parts.follower
        self._why_exposed = parts.why_exposed
        self.budget = budget
        self._queue: FairQueue[Waiting] = FairQueue(parts.settings.user_queue_max, parts.settings.user_states_max)
        self._may_go = asyncio.Event()  # something is queued, and the pipeline has room
        self.stopping = False

    @property
    def queued(self) -> int:
        """Submissions that wait to be admitted."""
        return len(self._queue)

    @property
    def wait_s(self) -> float:
        """Upper estimate, seconds, for a request that arrives now: the estimate sent to clients."""
        return self._estimate.wait_s(self.budget.states)

    def offer(self, batch: Sequence[tuple[int, Submission]], replies: Replies, options: SubmitOptions) -> None:
        """Queue a front end's submissions; those past the bounds are answered at once."""
        refused: list[tuple[int, Answer]] = []
        queued: list[int] = []
        now_us = self._clock.wall_us()
        wait_s, sharers, exposed = self.wait_s, self._sharing.sharers, self._why_exposed()
        for ticket, submission in batch:
            try:
                waiting = _waiting(replies, ticket, submission, options, now_us)
            except Exception as error:  # a value that the front end let through affects its sender only
                refused.append((ticket, self._failures.answer(submission.submission_id, error)))
                continue
            user, states = submission.user_id, waiting.states
            if not self._queue.has_room(user, states, self.budget.free, sharers):
                detail = f"{user!r} has as much queued as one may"
                refused.append((ticket, NotNow(Code.USER_OVERLOADED.name, detail, self.wait_s)))
                continue
            if exposed is not None or not self.budget.enter(states):
                refused.append((ticket, self._overloaded(exposed)))
                continue
            self._queue.push(user, waiting, states)
            queued.append(ticket)
        if refused:
            replies.send(refused)
        if wait_s > self._settings.interim_from_s and not options.asynchronous and queued:
            replies.wait(queued, wait_s)
        self.wake()

    def leave(self, submissions: int, states: int) -> None:
        """Release so many submissions and states, which makes room."""
        self.budget.leave(submissions, states)
        self.wake()

    def wake(self) -> None:
        """Check again whether the queue may go on: a submission was queued, or left the pipeline."""
        room, states_room = self._room()
        if self._queue and room > 0 and states_room > 0:
            self._may_go.set()
        elif not self.stopping:
            self._may_go.clear()

    async def next_batch(self) -> list[Waiting]:
        """Wait for the next batch in the users' turns, as far as the pipeline has room; perhaps empty."""
        await self._may_go.wait()
        if self._may_linger():
            await self._clock.sleep_s(self._settings.admit_linger_s)
        batch = self._take()
        self.wake()
        return batch

    def stop(self) -> None:
        """Let `next_batch` return at once from now on."""
        self.stopping = True
        self._may_go.set()

    def close(self) -> list[Waiting]:
        """Empty the queue, and return what was in it; nothing of it has reached the database."""
        self._may_go.clear()
        return self._queue.clear()

    def _take(self) -> list[Waiting]:
        room, states_room = self._room()
        return self._queue.take(min(room, self._settings.admit_batch_max), states_room)

    def _room(self) -> tuple[int, int]:
        """How many more submissions, and states, the pipeline takes: none until the record at the applied position was
        found again, after the log was opened anew."""
        if not self._follower.assured:
            return 0, 0
        settings, queue, budget = self._settings, self._queue, self.budget
        states = budget.states - queue.states
        return (
            settings.pipeline_max - (budget.submissions - len(queue)),
            min(settings.pipeline_states_max, self._states_in_time()) - states,
        )

    def _states_in_time(self) -> int:
        """How many states the pipeline may hold, so that what comes next need not wait longer than it may."""
        settings = self._settings
        if not settings.pipeline_max_s:
            return settings.pipeline_states_max
        return max(PIPELINE_STATES_MIN, self._estimate.states_in(settings.pipeline_max_s) or 0)

    def _may_linger(self) -> bool:
        """Under load, a batch that is not full yet is worth waiting for: each costs a round trip and a write."""
        settings = self._settings
        busy = self.budget.submissions >= settings.admit_linger_from
        return busy and len(self._queue) < settings.admit_batch_max and not self.stopping

    def _overloaded(self, exposed: str | None) -> NotNow:
        budget = self.budget
        if exposed is not None:
            return NotNow(Code.OVERLOADED.name, exposed, self.wait_s)
        detail = f"{budget.submissions} submissions with {budget.states} states are in flight"
        if budget.unpublished >= budget.unpublished_max:
            detail = f"{budget.unpublished} completions wait for the database"
        return NotNow(Code.OVERLOADED.name, detail, self.wait_s)


def _waiting(replies: Replies, ticket: int, submission: Submission, options: SubmitOptions, now_us: int) -> Waiting:
    """The submission with the facts that the core needs. May raise any Exception on values that are invalid.

    The request is not decoded whole, which would cost a tenth of a submission's cost here. A record that no reader of
    the log accepts as a request is answered when it is read back.
    """
    tx_id, digest, states_count = summarise(submission.request)
    user, command_id, act_as = submission.user_id, submission.command_id, submission.act_as
    check_command(user, command_id, act_as)
    check_submission_id(submission.submission_id)
    command = Command(
        change_id(user, command_id, act_as),
        user,
        command_id,
        act_as,
        submission.submission_id,
        tx_id,
        digest,
        now_us,
    )
    return Waiting(replies, ticket, submission, command, weight_of(submission, states_count), options)
