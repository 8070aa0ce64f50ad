"""Power is lost: brokers, replicas or both stop at once, and each goes on from what it had synced.

The log's tail, the indexes and the seen files go back together, each to its own last sync. What must happen next
follows from what is left: a mark that lies in the lost tail is noticed and nobody serves; without one, whatever was
lost was younger than the lead, and service goes on as if those answers had never been given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from msgspec.structs import replace

from replica.checker.history import Event, Ok, Refused, Unknown
from replica.notary.errors import LogRefused
from replica.notary.records import BarrierRecord, Undecodable, decode_record, record_digest
from tests.simulation.plan import Fault, FaultKind, Plan
from tests.simulation.restoring import submissions_in

if TYPE_CHECKING:
    from replica.notary.position import Position
    from tests.simulation.replica import Replica
    from tests.simulation.world import World

LEAD_S = 1.0  # by which answers may run ahead of what a power cut leaves
_LEAD_SLACK_S = 0.5  # a sync of a seen file, its way to a peer, and that peer's sync
_STANDSTILL_S = 12.0  # by then every replica has started, and knows what its peers know
_SYNCED, _REPLICATED = "synced", "replicated"
_BATCHES_LOST = (0, 1, 3, 30, 1_000_000)
_RECORDS_LOST = (0, 1, 3, 8, 25)
_HIT_SHARES = (0.0, 0.5, 1.0, 1.0)
_HELD_SHARE = 0.6
_SPOILS = (  # published position and rules go back, or the log is restored: other tests' subjects
    *[FaultKind.TAIL_LOST, FaultKind.DATABASE_RESTORED, FaultKind.DATABASE_FAIL_OVER, FaultKind.DATABASE_SPLIT],
    *[FaultKind.RULES_RAISED, FaultKind.RELEASE_CHANGED],
)


# ---- the plan ----


def with_power_cut(plan: Plan) -> Plan:
    """The same plan with one power cut, and a log that is synced or only replicated. In most of them nothing is
    published for a while before that."""
    random = Random(f"{plan.seed}/power")
    is_synced = plan.lease or plan.on_postgres or random.random() < 0.25
    at_s = round(random.uniform(0.35, 0.85) * plan.duration_s, 4)
    faults = [fault for fault in plan.faults if fault.kind not in _SPOILS]
    if random.random() < _HELD_SHARE:
        before_s = min(at_s, random.choice((0.3, 1.5, 4.0)))
        lasts_s = before_s + random.choice((0.0, 0.5, 5.0))
        faults.append(Fault(FaultKind.PUBLICATION_HELD, round(at_s - before_s, 4), duration_s=round(lasts_s, 4)))
    faults.append(
        Fault(
            FaultKind.POWER_CUT,
            at_s,
            step=random.choice(("", "", "active.logged", "active.publishing", "activating.barrier")),
            duration_s=round(random.uniform(0.05, 1.5), 3),
            amount=random.choice(_HIT_SHARES),
        )
    )
    return replace(
        plan,
        durability=_SYNCED if is_synced else _REPLICATED,
        rules=2,
        replicas=tuple([replace(replica, older=False) for replica in plan.replicas]),
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


# ---- the cut ----


@dataclass(frozen=True, slots=True)
class Cut:
    """What a power cut took. `before`: the log's records, and when they came; those from `end` on are lost. `hit` names
    who stopped. `is_known`: a mark that all find lies among the lost ones."""

    at_s: float
    end: int
    before: Sequence[bytes]
    stored_at_s: Sequence[float]
    hit: frozenset[str]
    is_known: bool = False

    def contradicts(self, mark: Position | None) -> bool:
        """Whether that record was lost."""
        if mark is None or not self.end <= mark.offset < len(self.before):
            return False
        return record_digest(self.before[mark.offset]) == mark.digest


def marks_of(replica: Replica) -> tuple[Position | None, ...]:
    """How far each table on its disk is."""
    disk = replica.disk
    return disk.position, disk.commands.position(), disk.parties.position()


class Power:
    """The power of one run's machines, and what its loss allows."""

    def __init__(self, world: World) -> None:
        self.cut: Cut | None = None
        self._world = world
        self._random = Random(f"{world.plan.seed}/power/cut")
        self._sent: dict[tuple[str, int], tuple[int, float]] = {}  # by process and operation: see `note_sent`

    def strike(self, fault: Fault) -> bool:
        """Cut the power; False where it was cut before."""
        world, topic = self._world, self._world.topic
        if self.cut is not None:
            return False
        random = self._random
        hit = [replica for replica in world.replicas if random.random() < fault.amount]
        before = list(topic.values)
        end = self._kept(len(before))
        names = frozenset(replica.name for replica in hit)
        cut = Cut(world.loop.time(), end, before, list(topic.stored_at_s), names)
        self.cut = dataclasses.replace(cut, is_known=cut.contradicts(world.primary.tables.position))
        if end < len(before):
            world.forgotten |= submissions_in(before[end:])
            world.recalled.clear()
        for replica in hit:
            self._stop(replica, fault.duration_s)
        if len(hit) == len(world.replicas):  # the database's machine as well; it syncs every commit
            world.primary.end_all()
            world.sessions_cut_short()
        world.lose_log(end, fault.duration_s)
        published = world.primary.tables.position
        world.story.tell(
            "power",
            "cut",
            kept=end,
            of=len(before),
            hit=sorted(self.cut.hit),
            published=-1 if published is None else published.offset,
            indexes={r.name: None if r.disk.position is None else r.disk.position.offset for r in world.replicas},
        )
        return True

    def _kept(self, end: int) -> int:
        """How many records the brokers have after it."""
        if self._world.plan.durability == _SYNCED:
            return end
        position, random = self._world.primary.tables.position, self._random
        published = 0 if position is None else position.offset
        kept = random.choice(
            (
                end - random.choice(_RECORDS_LOST),
                random.randint(0, end),
                published + random.choice((-1, 0, 1, 1, 2)),
                random.randint(min(published + 1, end), end),
            )
        )
        return max(0, min(kept, end))

    def _stop(self, replica: Replica, off_s: float) -> None:
        random = self._random
        replica.kill(heard_s=None)
        replica.disk.tear(random.choice(_BATCHES_LOST), random.choice(_BATCHES_LOST))
        replica.restart_later(after_failure=True, after_s=off_s + random.choice((0.0, 0.0, 2.0)) * random.random())

    # ---- what it allows ----

    @property
    def must_stop(self) -> bool:
        """Whether a mark is left that everybody knows and the log has lost: nobody may serve until a person came."""
        cut = self.cut
        return cut is not None and (cut.is_known or cut.contradicts(self._world.primary.tables.position))

    def is_contradicted(self, replica: Replica) -> bool:
        """Whether this replica's own disk knows of a record that is lost."""
        return self.cut is not None and any(self.cut.contradicts(mark) for mark in marks_of(replica))

    @property
    def may_stop(self) -> bool:
        """Whether anybody's mark lies in the lost tail."""
        return self.must_stop or any(self.is_contradicted(replica) for replica in self._world.replicas)

    def allows(self, replica: Replica, error: BaseException | None) -> bool:
        """Whether the loss is why a replica ended."""
        errors = (error, None if error is None else error.__cause__)
        return any(isinstance(one, LogRefused) for one in errors) and (self.must_stop or self.is_contradicted(replica))

    def note_sent(self, process: str, op: int, generation: int, at_s: float) -> None:
        """An answer was sent then, by a replica whose reader was opened in that generation of the log."""
        self._sent[process, op] = (generation, at_s)

    def is_past(self, generation: int) -> bool:
        """Whether what was read of the log in that generation may be lost."""
        return self.cut is not None and self.cut.end < len(self.cut.before) and not generation

    async def stand_still(self) -> None:
        """Wait until everybody who may notice has, and see that nobody serves."""
        world = self._world
        await world.pass_time(world.loop.time() + _STANDSTILL_S)
        end = world.topic.end_offset
        await world.pass_time(world.loop.time() + 2.0)
        serving = [replica.name for replica in world.replicas if replica.claims_to_lead]
        if serving or world.topic.end_offset != end:
            world.blame(f"the log lost a record that is known, and {serving or 'somebody'} serves on")

    # ---- the verdict ----

    def history(self) -> list[Event]:
        """What clients were told, without the answers that the log of `values` does not bear out by right."""
        history = self._world.history
        if self.cut is None:
            return history
        leaves_out = self._is_later if self.must_stop else self._rests_on_lost
        return [Unknown(e.process, e.op, e.at_ns, "LOST") if leaves_out(e) else e for e in history]

    def values(self) -> Sequence[bytes]:
        """The log that answers are judged by: where service had to stop, the one that was lost."""
        return self.cut.before if self.cut is not None and self.must_stop else self._world.topic.values

    def stored_at_s(self) -> Sequence[float]:
        """When the records of `values` came."""
        return self.cut.stored_at_s if self.cut is not None and self.must_stop else self._world.topic.stored_at_s

    def bears_out(self, replica: Replica) -> bool:
        """Whether the log of `values` has what this replica's disk was made from. Blames what no log ever had."""
        values = self.values()
        for mark in marks_of(replica):
            if mark is not None and not (
                mark.offset < len(values) and record_digest(values[mark.offset]) == mark.digest
            ):
                if not self.may_stop:
                    self._world.blame(f"{replica.name} has applied offset {mark.offset}, which no log ever had")
                return False
        return True

    def _is_later(self, event: Event) -> bool:
        """Whether it is an answer of a replica that read the log after the cut."""
        return isinstance(event, Ok | Refused) and self._sent.get((event.process, event.op), (0, 0.0))[0] > 0

    def _rests_on_lost(self, event: Event) -> bool:
        """Whether it is an answer from before the cut, by a record that is lost."""
        if not isinstance(event, Ok | Refused) or self.cut is None:
            return False
        if self._is_later(event) or len(self.cut.before) == self.cut.end:
            return False
        record = event.record_offset
        offset = record if record is not None or isinstance(event, Refused) else event.log_offset
        return offset is None or offset >= self.cut.end

    def judge(self) -> None:
        """Blame what the loss does not allow."""
        cut, world = self.cut, self._world
        if cut is None:
            return
        if not self.must_stop:
            lost = [self._sent.get((e.process, e.op), (0, cut.at_s)) for e in world.history if self._rests_on_lost(e)]
            age_s = cut.at_s - min((at_s for _, at_s in lost), default=cut.at_s)
            if age_s > LEAD_S + _LEAD_SLACK_S:
                world.blame(f"an answer that was {age_s:.1f} s old is lost with its record, and no mark is left of it")
        if not cut.is_known:
            return
        after = [event for event in world.history if self._is_later(event)]
        if after:
            world.blame(f"the log lost a record that is known, and {len(after)} answers were given: first {after[0]}")
        for offset, value in enumerate(world.topic.values[cut.end :], cut.end):
            with suppress(Undecodable):
                record = decode_record(value, 2)
                if cut.hit == {one.name for one in world.replicas} or (
                    isinstance(record, BarrierRecord) and record.replica in cut.hit
                ):
                    world.blame(f"the log lost a record that is known, and was appended to at {offset}")
                    break
