"""Defects that the product had: found by a seed, which is kept in tests/simulation/regressions, or by an attack."""

from __future__ import annotations

from typing import Any

from pytest import MonkeyPatch

import replica.following.follower
from ha.election.driver import Election
from ha.ending import STOPPED, Cause, Ending
from ha.errors import HaError
from replica.active.tasks import SessionTasks
from replica.following.follower import Follower
from replica.log.interface import RequestLog
from replica.notary.errors import LogRefused, LogTruncated
from tests.simulation.mutants.registry import mutant


@mutant("the log's end is compared with what was applied after it was asked for")
def end_of_the_log_compared_too_late(patch: MonkeyPatch) -> None:
    async def watch(self: Follower) -> None:
        while True:
            self._known_end = await self._log.end_offset()
            self._reached_at_s = self._clock.boottime_s()
            if self._known_end <= self.applied_offset:
                raise LogRefused("the log ends before what is applied")
            await self._clock.sleep_s(self._settings.read_wait_s)

    patch.setattr(Follower, "watch_end", watch)


@mutant("a lost lock session counts as a bug of the replica, which ends")
def lost_session_ends_the_process(patch: MonkeyPatch) -> None:
    async def run(self: SessionTasks, work: Any) -> None:
        try:
            await work
        except Exception as error:
            self._parts.fail(error)

    patch.setattr(SessionTasks, "_run", run)


@mutant("a statement that fails with the lock session reports the session's end as well, and its word wins")
def lost_session_reported_twice(patch: MonkeyPatch) -> None:
    async def run(self: SessionTasks, work: Any) -> None:
        try:
            await work
        except HaError as error:
            self.session_over = True
            self._parts.step_down(Ending(Cause.LOCK_LOST, error.detail, error.code))
        except Exception as error:
            self._parts.fail(error)

    patch.setattr(SessionTasks, "_run", run)


@mutant("a replica that fails tells its epoch that it was stopped")
def failure_told_as_a_stop(patch: MonkeyPatch) -> None:
    stop = Election.stop
    patch.setattr(Election, "stop", lambda self, ending=STOPPED: stop(self))


@mutant("a reader that gives nothing is waited for, although the log is known to go on")
def silent_reader_waited_for(patch: MonkeyPatch) -> None:
    patch.setattr(Follower, "silent_s", lambda self, silent_s, records: 0.0)


@mutant("one broker is believed that records are gone")
def one_broker_is_believed(patch: MonkeyPatch) -> None:
    async def hasty(request_log: RequestLog, offset: int) -> int:
        end = await request_log.end_offset()
        if end <= offset:
            raise LogTruncated(f"the log ends at {end}")
        return end

    patch.setattr(replica.following.follower, "end_after", hasty)
