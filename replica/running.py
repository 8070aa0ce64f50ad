"""Runs a replica's election until it ends or something else fails, and stores the reason with the activation."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from ha.election.driver import Election
from ha.ending import STOPPED
from ha.errors import TransitionFailed
from replica.active.endings import ending_of
from replica.participant import Participant, SessionT


async def run_to_the_end(
    participant: Participant[SessionT], election: Election[SessionT], beside: Awaitable[None], *, stop_max_s: float
) -> None:
    """Lead and follow until the election ends, or `beside`, which serves beside it. Raises the first failure.

    A failure ends the activation in order where that is possible, and is stored with its epoch in any case.
    `stop_max_s`: how long the election may take to end.
    """
    leading = asyncio.create_task(election.run(participant), name="election")
    serving = asyncio.ensure_future(beside)
    await asyncio.wait({leading, serving, participant.broken}, return_when=asyncio.FIRST_COMPLETED)
    if not leading.done():
        failure = _failure(participant.broken) or _failure(serving)
        await participant.marks.say()  # before the lock is given up: whoever gets it next reads that
        election.stop(STOPPED if failure is None else ending_of(failure))
        await asyncio.wait({leading}, timeout=stop_max_s)
    ended = leading.done()
    await participant.stop_working()  # its front ends are there until now
    leading.cancel()
    serving.cancel()
    await asyncio.wait({leading, serving})
    failure = _failure(participant.broken) or _failure(leading) or _failure(serving)
    if failure is None and not ended:
        failure = TransitionFailed(f"the election did not end within {stop_max_s} s")
    if failure is not None:
        participant.leave_note(ending_of(failure))
        raise failure


def _failure(done: asyncio.Future[None]) -> BaseException | None:
    return done.exception() if done.done() and not done.cancelled() else None
