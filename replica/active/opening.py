"""The order of opening an activation, which is the protocol (docs/architecture.md).

The steps: read the log to its end, open the log writer, compare the log with all marks, see it move, raise the epoch,
verify the lock, append the barrier, catch up to it, publish up to it.
Then it may serve.

A lease is granted by the log: the claim is the activation's only barrier. It has shown that the log moves, and epoch
and formats are the claim's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import structlog

from ha.errors import ActivationFailed
from ha.lock.interface import DatabaseIdentity, Grant
from replica.active.backlog import publish_backlog
from replica.active.catching_up import read_to_the_end, until_applied
from replica.active.holder import Holder
from replica.active.lineage import Descent, agree_with_log, check_descent
from replica.active.parts import Parts
from replica.active.publisher import Publisher
from replica.active.tasks import SessionTasks
from replica.notary.formats import Formats, of_barrier, to_write
from replica.notary.granters import grants_as
from replica.notary.position import Position
from replica.store.interface import ParticipantStore, Published

log = structlog.get_logger()


class Opening:
    """From the lock to the moment before serving. `epoch` and `steps_s` stay valid while the activation lasts."""

    def __init__(
        self,
        parts: Parts,
        store: ParticipantStore,
        *,
        database: DatabaseIdentity,
        verify_lock: Callable[[], Awaitable[object]],
        grant: Grant | None,
        holder: Holder,
        publisher: Publisher,
        tasks: SessionTasks,
    ) -> None:
        self._parts = parts
        self._store = store
        self._database = database
        self._verify_lock = verify_lock
        self._grant = grant
        self._holder = holder
        self._publisher = publisher
        self._tasks = tasks
        self.epoch = 0
        self.pauses = False  # service is paused: the barrier is one that nobody may write under
        self.steps_s: dict[str, float] = {}  # how long each step took
        self._began_s = 0.0  # the step that goes on

    async def run(self) -> None:
        """Carry it out. Raises ActivationFailed, or the error of the step that failed."""
        parts, store = self._parts, self._store
        self._began_s = parts.clock.boottime_s()
        agree_with_log(self._database, parts.request_log)
        position = await read_to_the_end(parts)
        if self._grant is None:
            self._check_descent(position)
        self._done("read_log")
        salvages = await parts.salvages_found.found(position.offset)
        raised = await store.bind(position.topic_id, salvages)
        claimed = None if self._grant is None else of_barrier(position.barrier)
        formats = claimed or to_write(raised, parts.follower.formats)
        await self._holder.open()
        self._done("open_log")
        await self._compare_with_marks()
        self._done("marks")
        if self._grant is None:
            await self._see_the_log_move(position)
        self._done("log_moves")
        grant = self._grant  # of a lease: the claim has an epoch
        self.epoch = await store.raise_epoch(position.epoch, parts.name) if grant is None else grant.epoch
        self._done("epoch")
        await self._verify_lock()
        self._done("verify_lock")
        published = await store.published()
        position = await self.put_barrier_in_force(formats) if grant is None else self._take_over(grant)
        self._done("barrier")
        self._publisher.begin(await self._publish_backlog(published, position))
        self._done("publish_backlog")
        self._tasks.start(self._publisher.run(), "publish")

    def _done(self, step: str) -> None:
        now_s = self._parts.clock.boottime_s()
        self.steps_s[step], self._began_s = now_s - self._began_s, now_s

    def _check_descent(self, position: Position) -> None:
        """Raises DatabaseSuperseded where a later primary granted the epoch in force, or has the log."""
        agree_with_log(self._database, self._parts.request_log)
        barrier = position.barrier
        if check_descent(self._database, barrier) is Descent.ANOTHER and barrier is not None:
            log.warning("database_changed", database=str(self._database), in_force=grants_as(barrier.granter))

    async def _see_the_log_move(self, position: Position) -> None:
        """Return once the log is seen to accept a record and to return it. Raises ActivationFailed when it does not.

        In a log that does not, no barrier comes into force, and each try would raise an epoch for nothing. If no record
        came lately, the barrier in force is written once more: that changes nothing for any reader.
        """
        if position.barrier is None or self._parts.follower.moved_lately():
            return
        self._holder.repeat_barrier(position.barrier)
        await until_applied(self._parts, lambda at: at.offset > position.offset, "a record that changes nothing")

    async def _compare_with_marks(self) -> None:
        """Return once the log was found to have every mark, and all is applied up to the highest. Raises LogTruncated
        and LogRefused: nothing may be written to such a log, or lost records could not be restored at their offsets.
        """
        parts = self._parts
        await parts.follower.reread()  # the writer may have reached another server
        parts.mark_check.note_left(await self._store.contradicted_marks())
        highest = await parts.mark_check.compare((await self._store.published()).position)
        await until_applied(parts, lambda at: at.offset >= highest, "the newest mark")

    async def put_barrier_in_force(self, formats: Formats) -> Position:
        """Append our barrier until one reads back in force, each try above every epoch seen; the position after it.

        Each try asks anew whether service is paused, once its epoch is raised. So a barrier above one that paused
        service was asked for later than that one, and lets service go on only if the pause was over by then.
        """
        while True:
            self.pauses = await self._store.service_paused()
            self._holder.append_barrier(self.epoch, formats, pauses=self.pauses)
            what = f"the barrier of epoch {self.epoch}"
            position = await until_applied(self._parts, partial(_has_epoch, self.epoch), what)
            if self._holder.in_force is not None:
                self._check_formats(formats)
                return self._holder.in_force
            log.warning("barrier_void", epoch=self.epoch, in_force=position.epoch)
            self._check_descent(position)
            self.epoch = await self._store.raise_epoch(position.epoch, self._parts.name)

    def _check_formats(self, written: Formats) -> None:
        """Raises ActivationFailed where a barrier of newer formats came between what we read and our own.

        An old primary grants epochs without knowing what was raised on the new one. Under older rules nothing may be
        admitted again: they do not judge by what was accepted under newer ones. The next activation writes the newer.
        """
        newest = self._parts.follower.formats
        if newest.raised(written) != written:
            raise ActivationFailed(f"{newest} came into force meanwhile, and this activation writes older ones")

    def _take_over(self, grant: Grant) -> Position:
        """Go on from the claim; the applied position. Raises ActivationFailed when it is not in force any more."""
        position = self._parts.follower.position
        barrier = None if position is None else position.barrier
        if position is None or barrier is None or barrier.activation_id != grant.activation_id:
            raise ActivationFailed("a newer activation is in force")
        self._holder.go_on_from(barrier, position)
        return position

    async def _publish_backlog(self, published: Published, position: Position) -> Published:
        parts = self._parts
        return await publish_backlog(
            parts.request_log,
            parts.index,
            self._store,
            published=published,
            applied_to=position,
            settings=parts.settings,
            salvages=parts.salvages,
        )


def _has_epoch(epoch: int, position: Position) -> bool:
    return position.epoch >= epoch
