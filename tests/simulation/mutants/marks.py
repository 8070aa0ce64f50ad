"""Defects of what notices that a power cut took records: marks, what is compared with them, and the lead."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import structs
from pytest import MonkeyPatch

import replica.following.mark_check
import replica.marks.judging
import replica.marks.seen_file
import tests.simulation.replica
from replica.active.opening import Opening
from replica.following.mark_check import MarkCheck
from replica.log.interface import RequestLog
from replica.marks.judging import NO_WITNESS, Claim, Found, Meaning, Origin
from replica.marks.keeper import MarkKeeper
from replica.marks.lead import Lead
from replica.marks.seen_file import Seen, SeenState
from replica.notary.errors import LogUnavailable
from replica.notary.marks import ContradictedMark
from replica.notary.position import Position
from replica.participant import Participant
from replica.store.memory import MemoryMarks
from tests.simulation.draw import draw
from tests.simulation.mutants.registry import mutant
from tests.simulation.plan import Fault, FaultKind, Plan
from tests.simulation.power import REPLICATED, with_damage, with_power_cut
from tests.simulation.workers import all_serving

SLOW_SYNC_S = 0.15


def _plan(seed: int) -> Plan:
    return with_power_cut(all_serving(draw(seed)) if seed % 2 else draw(seed))


def _all_serving(seed: int) -> Plan:
    return with_power_cut(all_serving(draw(seed)))


def _alone(seed: int) -> Plan:
    """Two replicas of which one stops, and nothing is published: the other one answers, until all power is lost."""
    plan = _all_serving(seed)
    faults = (
        Fault(FaultKind.PUBLICATION_HELD, 1.0, duration_s=6.0),
        Fault(FaultKind.STALL, 1.0, plan.replicas[1].name, duration_s=4.5),
        Fault(FaultKind.POWER_CUT, 5.0, amount=1.0, duration_s=0.5),
    )
    replicas = tuple([structs.replace(one, may_lead=True, clock_apart_s=0.0) for one in plan.replicas[:2]])
    return structs.replace(plan, duration_s=6.0, durability=REPLICATED, replicas=replicas, faults=faults)


def _both(seed: int) -> Plan:
    """The same, and both answer."""
    plan = _alone(seed)
    return structs.replace(plan, faults=tuple([one for one in plan.faults if one.kind is not FaultKind.STALL]))


def _behind(seed: int) -> Plan:
    """The brokers lose power. A replica had not read what is lost, and heard of it; who had read it stalls."""
    plan = _alone(seed)
    behind, knowing = (replica.name for replica in plan.replicas)
    faults = (
        Fault(FaultKind.PUBLICATION_HELD, 1.0, duration_s=6.0),
        Fault(FaultKind.LOG_CUT, 2.3, behind, duration_s=0.9),
        Fault(FaultKind.STALL, 2.9, knowing, duration_s=5.0),
        Fault(FaultKind.POWER_CUT, 3.0, duration_s=0.3),
    )
    return structs.replace(plan, duration_s=9.0, faults=faults)


def _ends_unheard(seed: int) -> Plan:
    """The same, and no replica hears of another: who had read it does not stall, and ends before anybody asks it."""
    plan = _behind(seed)
    faults = (
        Fault(FaultKind.PEERS_APART, 0.5, duration_s=60.0),
        Fault(FaultKind.PUBLICATION_HELD, 1.0, duration_s=6.0),
        Fault(FaultKind.LOG_CUT, 1.2, plan.replicas[0].name, duration_s=2.0),
        Fault(FaultKind.POWER_CUT, 3.0, duration_s=0.3),
    )
    return structs.replace(plan, faults=faults)


def _late_witness(seed: int) -> Plan:
    """All power is lost. One replica comes back with a new disk, and the log grows again; the other one, which has read
    what was lost, comes later."""
    plan = _alone(seed)
    faults = (
        Fault(FaultKind.PUBLICATION_HELD, 1.0, duration_s=2.2),
        Fault(FaultKind.POWER_CUT, 3.0, plan.replicas[1].name, amount=1.0, duration_s=0.5),
    )
    return structs.replace(plan, duration_s=12.0, faults=faults)


def _damaged(seed: int) -> Plan:
    return with_damage(all_serving(draw(seed)) if seed % 2 else draw(seed))


_mark_mutant = partial(mutant, plan_of=_plan)


@mutant("answers run ahead of marks without bound", _alone)
def lead_unbounded(patch: MonkeyPatch) -> None:
    patch.setattr(Lead, "why_not", lambda self, now_s: None)


@_mark_mutant("a mark holds where the log is long enough, whatever it has there")
def digest_of_a_mark_not_compared(patch: MonkeyPatch) -> None:
    meaning = replica.marks.judging.meaning

    def by_length(claim: Claim, found: Found) -> Meaning:
        return meaning(claim, structs.replace(found, digest=claim.mark.digest if found.digest is not None else None))

    patch.setattr(replica.following.mark_check, "meaning", by_length)


@_mark_mutant("a published position is looked for by the log's length alone, and seen files are not looked for")
def ends_compared_only(patch: MonkeyPatch) -> None:
    async def compare(self: MarkCheck, published: Position | None) -> int:
        if published is not None and await self._log.agreed_end_offset() <= published.offset:
            raise replica.marks.judging.contradiction(
                Claim(published, Origin.PUBLISHED), Found("", 0, None, False, True), Meaning.ENDS_BEFORE
            )
        return -1 if published is None else published.offset

    patch.setattr(MarkCheck, "compare", compare)


@_mark_mutant("the log's end is asked first, and the marks are read after")
def marks_read_after_the_end(patch: MonkeyPatch) -> None:
    run = MarkCheck.run

    async def early(self: MarkCheck) -> None:
        with suppress(LogUnavailable):
            self._log = _EndOf(self._log, await self._log.agreed_end_offset())  # type: ignore[assignment]
        await run(self)

    patch.setattr(MarkCheck, "run", early)


class _EndOf:
    """A log whose first answer about its end is an old one."""

    def __init__(self, log: RequestLog, end: int) -> None:
        self._log = log
        self._end: int | None = end

    async def agreed_end_offset(self) -> int:
        end, self._end = self._end, None
        return await self._log.agreed_end_offset() if end is None else end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)


@_mark_mutant("peers are not asked for their marks, and their reports are not heard")
def peers_not_asked(patch: MonkeyPatch) -> None:
    claims = MarkKeeper.claims
    patch.setattr(MarkKeeper, "claims", lambda self: [one for one in claims(self) if one.origin is not Origin.PEER])
    patch.setattr(MarkKeeper, "reports", lambda self: [])


@_mark_mutant("a peer's mark is believed, whether or not it was made from this log")
def peers_believed_blindly(patch: MonkeyPatch) -> None:
    meaning = replica.marks.judging.meaning
    patch.setattr(
        replica.following.mark_check,
        "meaning",
        lambda claim, found: meaning(claim, structs.replace(found, has_barrier=True)),
    )


@mutant("the position of a peer whose disk is damaged is believed", _damaged)
def damaged_position_believed(patch: MonkeyPatch) -> None:
    patch.setattr(replica.marks.judging, "is_refuted", lambda claim, found: False)


@mutant(
    "a peer's position counts as damaged wherever the log has another record, whenever that was read", _late_witness
)
def any_reading_refutes(patch: MonkeyPatch) -> None:
    patch.setattr(
        replica.marks.judging,
        "is_refuted",
        lambda claim, found: claim.witness is not NO_WITNESS and found.digest is not None,
    )


@mutant("a replica tells the first mark that it finds contradicted, and not the oldest", _late_witness)
def first_contradiction_told(patch: MonkeyPatch) -> None:
    contradict = MarkKeeper.contradict

    def first(self: MarkKeeper, mark: Position, *, own: bool) -> None:
        if self.contradicted is None:
            contradict(self, mark, own=own)

    patch.setattr(MarkKeeper, "contradict", first)


@mutant("a replica that ends leaves its mark in no database", _ends_unheard)
def no_mark_left_in_the_database(patch: MonkeyPatch) -> None:
    async def nothing(self: MemoryMarks, left: ContradictedMark) -> None:
        return

    patch.setattr(MemoryMarks, "leave_mark", nothing)


@mutant("marks that replicas left in the database are not read", _ends_unheard)
def marks_in_the_database_not_read(patch: MonkeyPatch) -> None:
    patch.setattr(MarkKeeper, "_everybody", lambda self: list(self._told.items()))


@mutant("a seen file with a torn slot counts as none; syncs are slow, so that slots are torn", _both)
def torn_slot_loses_the_other(patch: MonkeyPatch) -> None:
    newest_of = replica.marks.seen_file.newest_of

    def whole_or_none(slots: tuple[bytes, bytes]) -> tuple[int, Seen, SeenState]:
        number, seen, state = newest_of(slots)
        return (number, Seen(), SeenState.DAMAGED) if state is SeenState.SLOT_TORN else (number, seen, state)

    patch.setattr(tests.simulation.replica, "SYNC_S", SLOW_SYNC_S)
    patch.setattr(replica.marks.seen_file, "newest_of", whole_or_none)


@mutant("marks are compared at the start alone, and not when the log is opened anew", _behind)
def marks_not_compared_again(patch: MonkeyPatch) -> None:
    async def trusting(self: Participant[Any]) -> None:
        return

    patch.setattr(Participant, "_compare_again", trusting)


@_mark_mutant("a barrier is written before the log was compared with marks")
def barrier_before_the_marks(patch: MonkeyPatch) -> None:
    async def trusting(self: Opening) -> None:
        return

    patch.setattr(Opening, "_compare_with_marks", trusting)


@_mark_mutant("a replica that finds its mark contradicted ends without a word")
def contradiction_not_told(patch: MonkeyPatch) -> None:
    patch.setattr(MarkKeeper, "contradict", lambda self, mark: None)
