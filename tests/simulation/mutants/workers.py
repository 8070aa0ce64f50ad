"""Defects of notary workers: whose numbers, whose records, what is logged anew, who publishes, whose clock stamps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace
from pytest import MonkeyPatch

import replica.active.lease_log
import replica.active.log_desk
import replica.active.numbers
import replica.active.worker
import replica.notary.reading
from ha.election.states import Readiness
from replica.active.numbers import range_of
from replica.active.own_records import OwnRead, OwnRecords
from replica.active.server import Server
from replica.active.worker import Worker
from replica.following.apply import Applied
from replica.notary.counted import CountedRequest
from replica.notary.position import BEGIN, Position, offset_of
from replica.notary.records import BarrierRecord
from replica.participant import Participant
from replica.store.interface import Row
from replica.store.memory import MemoryDatabase, MemoryStore
from replica.store.words import drawn
from tests.simulation.draw import draw, leased
from tests.simulation.mutants.registry import mutant
from tests.simulation.plan import Plan
from tests.simulation.workers import all_serving


def _plan(seed: int) -> Plan:
    return all_serving(draw(seed))


def _leased_plan(seed: int) -> Plan:
    return leased(all_serving(draw(seed)))


_worker_mutant = partial(mutant, plan_of=_plan)
_leased_mutant = partial(mutant, plan_of=_leased_plan)


@_worker_mutant("the database gives the same range of numbers to every worker")
def ranges_meet(patch: MonkeyPatch) -> None:
    patch.setattr(replica.active.worker, "range_of", lambda _, database: range_of(1, database))


@_worker_mutant("a worker answers its submission from any record of the same transaction")
def answer_to_anothers_record(patch: MonkeyPatch) -> None:
    take = OwnRecords.take

    def careless(self: OwnRecords, applied: Applied) -> OwnRead:
        read = take(self, applied)
        for entry, verdict in applied.decided():
            if not isinstance(entry, CountedRequest) or verdict is None:
                continue
            for number, (waiting, _) in list(self.sent.items()):
                if waiting.command.tx_id == entry.request.tx_id:
                    read.decided.append((waiting, entry, verdict))
                    del self.sent[number]
        return read

    patch.setattr(OwnRecords, "take", careless)


@_worker_mutant("a record that was not read back for a while is logged again, although it was not read void")
def logged_again_on_a_time_out(patch: MonkeyPatch) -> None:
    resume = Server.resume

    def impatient(self: Server) -> None:
        appender, now_us = self.appender, self._parts.clock.wall_us()
        late = [number for number, (_, record) in appender.own.sent.items() if now_us - record.stamp_us > 300_000]
        appender.held.extend(appender.own.sent.pop(number)[0] for number in late)
        resume(self)

    patch.setattr(Server, "resume", impatient)


@_worker_mutant("completions are written on any connection, whoever has the lock and whatever is published already")
def completions_written_by_two(patch: MonkeyPatch) -> None:
    publish = MemoryDatabase.publish

    def blindly(self: MemoryDatabase, completions: Sequence[Row], position: Position, after_offset: int) -> int:
        return publish(self, completions, position, offset_of(self.position))

    async def without_lock(self: MemoryStore, completions: Sequence[Row], position: Position) -> int:
        return self._database.publish(completions, position, BEGIN)

    patch.setattr(MemoryDatabase, "publish", blindly)
    patch.setattr(MemoryStore, "publish", without_lock)


@_worker_mutant("a worker stamps records whatever its clock says")
def fast_clock_stamps(patch: MonkeyPatch) -> None:
    patch.setattr(Worker, "why_not_stamp", lambda _: None)


@_worker_mutant("a worker that may not lead takes the lock")
def leads_although_it_may_not(patch: MonkeyPatch) -> None:
    readiness = Participant.readiness

    def willing(self: Participant[Any]) -> Readiness:
        self.may_lead = True
        return readiness(self)

    patch.setattr(Participant, "readiness", willing)


@_worker_mutant("workers write under a barrier that pauses service")
def written_under_a_pause(patch: MonkeyPatch) -> None:
    def any_barrier(position: Position | None) -> BarrierRecord | None:
        return None if position is None else position.barrier

    for module in (replica.active.numbers, replica.active.worker):
        patch.setattr(module, "writable", any_barrier)
    patch.setattr(replica.active.worker, "is_paused", lambda _: False)


@_worker_mutant("who takes the lock while service is paused does not look for the pause")
def pause_ends_with_its_holder(patch: MonkeyPatch) -> None:
    async def of_the_first(self: MemoryStore) -> bool:
        paused = self._database.service_paused and not vars(self._database).get("seen_paused", False)
        vars(self._database)["seen_paused"] = self._database.service_paused
        return paused

    patch.setattr(MemoryStore, "service_paused", of_the_first)


@_leased_mutant("what another replica logs is taken for a sign of life of the lease's holder")
def others_show_the_holders_life(patch: MonkeyPatch) -> None:
    patch.setattr(replica.notary.reading, "shows_life", lambda sequence: True)


@_leased_mutant("a claim names the newest record that its replica read, whoever wrote it")
def witness_of_anybody(patch: MonkeyPatch) -> None:
    def as_if_counted(position: Position) -> Position:
        return replace(position, counted_offset=position.offset)

    view_at, is_as_in = replica.active.lease_log.view_at, replica.active.lease_log._is_as_in
    patch.setattr(replica.active.lease_log, "view_at", lambda position: view_at(as_if_counted(position)))
    patch.setattr(replica.active.lease_log, "_is_as_in", lambda position, view: is_as_in(as_if_counted(position), view))


@_leased_mutant("of two that draw numbers from the log at once both take the word in force for theirs")
def equal_draws(patch: MonkeyPatch) -> None:
    patch.setattr(replica.active.log_desk, "drawn", lambda value, mark: drawn(value, ""))
