"""Power is lost: brokers, replicas or both stop at once, and each goes on from what it had synced.

The log's tail, the indexes and the seen files go back together, each to its own last sync. What must happen next
follows from what is left: a mark that lies in the lost tail is noticed and nobody serves; without one, whatever was
lost was younger than the lead, and service goes on as if those answers had never been given.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, TypeGuard

from msgspec.structs import replace

from replica.checker.history import Event, Ok, Refused, Unknown
from replica.marks.seen_file import MemorySeenFile, Seen, SeenDisk, encode_slot
from replica.notary.errors import LogRefused, StoreUnavailable
from replica.notary.granters import Database
from replica.notary.position import BEGIN, POSITION_VERSION, Position, offset_of
from replica.notary.records import BarrierRecord, Undecodable, decode_record, record_digest
from replica.notary.requests import DIGEST_BYTES
from replica.store.memory import MemoryMarks
from tests.simulation.plan import Fault, FaultKind, Plan
from tests.simulation.restoring import submissions_in
from tests.worlds.beginning import LEDGER

if TYPE_CHECKING:
    from tests.simulation.replica import Core, Replica, Sent
    from tests.simulation.world import World

LEAD_S = 1.0  # by which answers may run ahead of what a power cut leaves
_LEAD_SLACK_S = 0.5  # a sync of a seen file, its way to a peer, and that peer's sync
FOREIGN_S = 5.0  # time for who knows to end, and for others not to
_STANDSTILL_S = 12.0  # by then every replica has started, and knows what its peers know
SYNCED, REPLICATED = "synced", "replicated"
SYNC_S = 0.003  # of a seen file
_LOOK_S = 1.0  # between two at the database
_TELL_S = 0.25  # between two looks at the peers' health documents
_NOT_TOLD_SHARE = 0.05
_BATCHES_LOST = (0, 1, 3, 30, 1_000_000)
_RECORDS_LOST = (0, 1, 3, 8, 25)
_HIT_SHARES = (0.0, 0.5, 1.0, 1.0)
_HELD_SHARE = 0.6
_APART_SHARE = 0.4
_REPLACED_SHARE = 0.15  # of the machines that lose power: the disk with the seen file is a new one
_LATE_S = 6.0  # longer than a start waits for its peers, and the log grows again
_AWAY_MAX_S = (0.0, 0.0, 2.0, 7.0)
_CLONED_SHARE = 0.15
_SYNCED_SHARE = 0.15
_SPOILS = (  # published position and rules go back, or the log is restored: other tests' subjects
    *[FaultKind.TAIL_LOST, FaultKind.DATABASE_RESTORED, FaultKind.DATABASE_FAIL_OVER, FaultKind.DATABASE_SPLIT],
)


# ---- the plan ----


def with_power_cut(plan: Plan) -> Plan:
    """The same plan with one power cut, and a log that is synced or only replicated. In most of them nothing is
    published for a while before that."""
    random = Random(f"{plan.seed}/power")
    is_cloned = random.random() < _CLONED_SHARE
    is_synced = plan.lease or plan.on_postgres or is_cloned or random.random() < _SYNCED_SHARE
    at_s = round(random.uniform(0.35, 0.85) * plan.duration_s, 4)
    faults = [fault for fault in plan.faults if fault.kind not in _SPOILS]
    if random.random() < _HELD_SHARE:
        before_s = min(at_s, random.choice((0.3, 1.5, 4.0)))
        lasts_s = before_s + random.choice((0.0, 0.5, 5.0))
        faults.append(Fault(FaultKind.PUBLICATION_HELD, round(at_s - before_s, 4), duration_s=round(lasts_s, 4)))
        if random.random() < _APART_SHARE:
            apart_s = before_s * random.uniform(0.5, 1.0)
            faults.append(Fault(FaultKind.PEERS_APART, round(at_s - apart_s, 4), duration_s=round(apart_s + 0.5, 4)))
    if is_cloned:
        victim = random.choice(plan.replicas).name
        early_s = round(random.uniform(0.1, 0.9) * at_s, 4)
        faults.append(Fault(FaultKind.DISK_CLONED, early_s, victim, amount=random.choice((0, 0, 1))))
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
        durability=SYNCED if is_synced else REPLICATED,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )


def with_damage(plan: Plan) -> Plan:
    """The same plan with nothing but one replica's index position damaged, under its own barrier. Every other one reads
    the log all the time: who did not cannot tell a damaged position from a lost record."""
    random = Random(f"{plan.seed}/damage")
    at_s = round(random.uniform(0.4, 0.8) * plan.duration_s, 4)
    faults = (Fault(FaultKind.POSITION_DAMAGED, at_s, random.choice(plan.replicas).name),)
    follows = {"standby": "following", "may_lead": True, "clock_apart_s": 0.0}
    return replace(
        plan,
        durability=random.choice((SYNCED, REPLICATED)),
        replicas=tuple([replace(one, **follows) for one in plan.replicas]),
        faults=faults,
    )


# ---- the cut ----


@dataclass(frozen=True, slots=True)
class Cut:
    """What a power cut took. `before`: the log's records, and when they came; those from `end` on are lost. `hit` names
    who stopped. The other fields say which marks are left of lost records. is_published: the database's. knowing: the
    replicas whose own disk shows the loss. holding: those whose seen file had such a mark of anybody, also where that
    disk was replaced. is_told: others must believe it, as a mark's barrier is not lost, or as two tell it; a loss that
    takes the barriers as well and of which one replica alone knows shows to nobody else. is_tellable: they may, by the
    index of one that did not follow, if it leads again, or by what one that was not hit had heard."""

    at_s: float
    end: int
    before: Sequence[bytes]
    stored_at_s: Sequence[float]
    hit: frozenset[str]
    is_published: bool = False
    knowing: frozenset[str] = frozenset()
    holding: frozenset[str] = frozenset()
    is_told: bool = False
    is_tellable: bool = False

    def contradicts(self, mark: Position | None) -> bool:
        """Whether that record was lost."""
        if mark is None or not self.end <= mark.offset < len(self.before):
            return False
        return record_digest(self.before[mark.offset]) == mark.digest

    def is_believed(self, mark: Position | None) -> bool:
        """Whether that record was lost, and replicas that never read it must believe so: its barrier is still there."""
        return mark is not None and self.contradicts(mark) and BEGIN < mark.barrier_offset < self.end

    @property
    def is_covered(self) -> bool:
        """Whether such a mark is published, or in two seen files: answers ran at most the lead ahead of that."""
        return self.is_published or len(self.holding) > 1


def _offset_of(event: Ok | Refused) -> int | None:
    """The record that an answer names, if any."""
    record = event.record_offset
    return record if record is not None or isinstance(event, Refused) else event.log_offset


def _seen_in_words(replica: Replica) -> str:
    seen, state = MemorySeenFile(replica.seen).read()
    peers = {name: mark.offset for name, mark in seen.peers.items()}
    return f"{state}: {None if seen.own is None else seen.own.offset}, {peers}"


async def tell_marks(world: World, core: Core) -> None:
    """What a replica's watch of its peers does for marks: it asks for their health documents, and notes what they tell.
    A process that is stopped or down tells nothing, and now and then an answer is lost."""
    name, random = core.process.name, Random(f"{world.plan.seed}/{core.process.name}/marks/{world.loop.time()}")
    while True:
        for peer in world.replicas:
            if peer.name != name:
                await asyncio.sleep(random.uniform(0.0004, 0.004))
                is_up = peer.core is not None and not peer.core.process.stopped
                there = is_up and random.random() >= _NOT_TOLD_SHARE and world.loop.time() >= world.power.apart_until_s
                told = peer.core.participant.marks.told() if there and peer.core is not None else None
                core.participant.marks.note_told(peer.name, told)
        await asyncio.sleep(_TELL_S * random.uniform(0.9, 1.1))


async def share_marks(world: World, core: Core) -> None:
    """What a replica's bulletin does for marks: it looks at those in the database, and leaves its own."""
    name, random = core.process.name, Random(f"{world.plan.seed}/{core.process.name}/shared marks/{world.loop.time()}")

    async def travel() -> None:
        await asyncio.sleep(random.uniform(0.0002, 0.003))
        if not world.route(name).accepts or world.skies.of(name).database_cut:
            raise StoreUnavailable("the database is away")

    while True:
        with suppress(StoreUnavailable):
            await core.participant.marks.exchange(MemoryMarks(world.route(name).tables, travel))
        await asyncio.sleep(_LOOK_S * random.uniform(0.9, 1.1))


class Power:
    """The power of one run's machines, and what its loss allows."""

    def __init__(self, world: World) -> None:
        self.cut: Cut | None = None
        self.apart_until_s = 0.0  # until then no replica hears of another
        self._replaced: dict[str, SeenDisk] = {}  # disks that are gone, as they were
        self.foreign = ""  # the replica with a seen file of another notary, or with a damaged position
        self._world = world
        self._random = Random(f"{world.plan.seed}/power/cut")
        self._sent: dict[tuple[str, int], Sent] = {}  # by process and operation

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
        if end < len(before):
            world.forgotten |= submissions_in(before[end:])
            world.recalled.clear()
        for replica in hit:
            self._stop(replica, fault)
        if len(hit) == len(world.replicas):  # the database's machine as well; it syncs every commit
            world.primary.end_all()
            world.sessions_cut_short()
        world.lose_log(end, fault.duration_s)
        self.cut = self._with_marks(cut)
        published = world.primary.tables.position
        world.story.tell(
            "power",
            "cut",
            kept=end,
            of=len(before),
            hit=sorted(self.cut.hit),
            published=-1 if published is None else published.offset,
            indexes={r.name: offset_of(r.disk.position()) for r in world.replicas},
            seen={r.name: _seen_in_words(r) for r in world.replicas},
            knowing=sorted(self.cut.knowing),
            is_told=self.cut.is_told,
        )
        return True

    def _with_marks(self, cut: Cut) -> Cut:
        """What is left of marks, once every disk went back to its last sync."""
        knowing, holding, witnesses, is_told, is_tellable = set(), set(), 0, False, False
        for replica in self._world.replicas:
            seen, _ = MemorySeenFile(replica.seen).read()
            own, peers = [seen.own, replica.disk.position()], list(seen.peers.values())
            if any(map(cut.contradicts, own)) or any(map(cut.is_believed, peers)):
                knowing.add(replica.name)
            synced, _ = MemorySeenFile(self._replaced.get(replica.name, replica.seen)).read()
            if any(map(cut.contradicts, [synced.own, *synced.peers.values()])):
                holding.add(replica.name)
            follows = replica.plan.standby == "following"  # else its index is compared only once it leads
            index = [replica.disk.position()] if follows else []
            heard = [] if replica.core is None else replica.core.participant.marks.claims()  # older ones, perhaps
            is_told = is_told or any(map(cut.is_believed, [seen.own, *index, *peers]))
            witnesses += follows and any(map(cut.contradicts, [seen.own, *index]))
            older = [replica.disk.position(), *[claim.mark for claim in heard]]
            is_tellable = is_tellable or any(map(cut.is_believed, older))
        return dataclasses.replace(
            cut,
            is_published=cut.contradicts(self._world.primary.tables.position),
            knowing=frozenset(knowing),
            holding=frozenset(holding),
            is_told=is_told or witnesses > 1,
            is_tellable=is_told or is_tellable or len(knowing) > 1,
        )

    def _kept(self, end: int) -> int:
        """How many records the brokers have after it."""
        if self._world.plan.durability == SYNCED:
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
        return max(len(self._world.beginning), min(kept, end))

    def _stop(self, replica: Replica, fault: Fault) -> None:
        random = self._random
        replica.kill(heard_s=None)
        replica.disk.tear(random.choice(_BATCHES_LOST))
        replica.seen.cut({slot: random.choice((0.0, 0.5, 1.0)) for slot in (0, 1)})
        is_new, away_s = random.random() < _REPLACED_SHARE, 0.0
        if fault.target:
            is_new, away_s = replica.name == fault.target, 0.0 if replica.name == fault.target else _LATE_S
        if is_new:
            self._replaced[replica.name], replica.seen = replica.seen, SeenDisk()
            replica.disk.tear(_BATCHES_LOST[-1])
        away_s += random.choice(_AWAY_MAX_S) * random.random()
        replica.restart_later(after_failure=True, after_s=fault.duration_s + away_s)

    def clone_disk(self, replica: Replica, *, is_foreign: bool) -> bool:
        """The replica stops, and starts with a peer's seen file, or with another notary.s whose log has that name."""
        world = self._world
        following = [one for one in world.replicas if one.plan.standby == "following" and one.plan.may_lead]
        skew_max_s = world.election.clock_skew_max_s
        others = [one for one in following if one is not replica and abs(one.plan.clock_apart_s) <= skew_max_s]
        if not others or self.cut is not None:
            return False
        replica.kill(heard_s=None)
        if is_foreign:
            self.foreign = replica.name
            barrier = BarrierRecord(1, b"elsewhere-------", replica.name, Database("postgres", "elsewhere", 1), 2, 3)
            offset = self._random.randint(0, 2 * world.topic.end_offset)
            mark = Position(
                POSITION_VERSION,
                LEDGER,
                world.topic.topic_id,
                offset,
                b"e" * DIGEST_BYTES,
                barrier,
                0,
                counted_offset=0,
            )
            replica.seen.slots = [b"", encode_slot(1, Seen(mark))]
        else:
            replica.seen.slots = list(others[0].seen.slots)
        replica.seen.cached = {}
        replica.restart_later(after_failure=True)
        return True

    def damage_position(self, replica: Replica) -> bool:
        """The replica stops; its index names another record at its position than the log has."""
        position = replica.disk.position()
        if position is None or position.barrier is None or self.foreign:
            return False
        replica.kill(heard_s=None)
        replica.disk.move_to(replace(position, digest=b"d" * DIGEST_BYTES))
        self.foreign = replica.name
        replica.restart_later(after_failure=True)
        return True

    # ---- what it allows ----

    @property
    def is_known(self) -> bool:
        """Whether everybody finds a mark that the log has lost: nobody may serve until a person came."""
        cut = self.cut
        return cut is not None and (cut.is_published or len(cut.knowing) == len(self._world.replicas))

    @property
    def must_stop(self) -> bool:
        """Whether nobody may serve in the end, once replicas that know have told the others."""
        cut = self.cut
        if cut is None:
            return False
        # completions of lost records may be published after the cut, by an active that had read them
        return self.is_known or cut.is_told or cut.contradicts(self._world.primary.tables.position)

    @property
    def may_stop(self) -> bool:
        """Whether anybody has a mark that lies in the lost tail."""
        cut, replicas = self.cut, self._world.replicas
        return self.must_stop or (cut is not None and any(map(self._knows, replicas)))

    def _knows(self, replica: Replica) -> bool:
        cut = self.cut
        return cut is not None and (replica.name in cut.knowing or cut.contradicts(replica.disk.position()))

    def allows(self, replica: Replica, error: BaseException | None) -> bool:
        """Whether the loss is why a replica ended."""
        errors = (error, None if error is None else error.__cause__)
        is_tellable = self.cut is not None and self.cut.is_tellable
        knows = self.must_stop or is_tellable or self._knows(replica) or replica.name == self.foreign
        return knows and any(isinstance(one, LogRefused) for one in errors)

    def note_sent(self, process: str, op: int, sent: Sent) -> None:
        """An operation was answered."""
        self._sent[process, op] = sent

    def is_past(self, generation: int) -> bool:
        """Whether what was read of the log in that generation is not in `values` for certain: it may be lost, or of the
        log that grew again where the lost one counts."""
        return self.cut is not None and self.cut.end < len(self.cut.before) and (not generation or self.is_known)

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
        leaves_out = self._is_later if self.is_known else self._rests_on_lost
        return [Unknown(e.process, e.op, e.at_ns, "LOST") if leaves_out(e) else e for e in history]

    def values(self) -> Sequence[bytes]:
        """The log that answers are judged by: where service had to stop, the one that was lost."""
        return self.cut.before if self.cut is not None and self.is_known else self._world.topic.values

    def published_offset(self, offset: int) -> int:
        """Up to where completions are those of the log of `values`."""
        is_older = self.cut is not None and self.must_stop and not self.is_known
        return min(offset, self.cut.end - 1) if is_older and self.cut is not None else offset

    def stored_at_s(self) -> Sequence[float]:
        """When the records of `values` came."""
        return self.cut.stored_at_s if self.cut is not None and self.is_known else self._world.topic.stored_at_s

    def bears_out(self, replica: Replica) -> bool:
        """Whether the log of `values` has what this replica's disk was made from. Blames what no log ever had."""
        values = self.values()
        if replica.name == self.foreign:
            return False
        mark = replica.disk.position()
        if mark is None or (mark.offset < len(values) and record_digest(values[mark.offset]) == mark.digest):
            return True
        if not self.may_stop:
            self._world.blame(f"{replica.name} has applied offset {mark.offset}, which no log ever had")
        return False

    def _is_later(self, event: Event) -> bool:
        """Whether it is an answer of a replica that read the log after the cut."""
        sent = self._sent.get((event.process, event.op))
        return isinstance(event, Ok | Refused) and sent is not None and sent.generation > 0

    def _rests_on_lost(self, event: Event) -> TypeGuard[Ok | Refused]:
        """Whether it is an answer from before the cut, by a record that is lost."""
        if not isinstance(event, Ok | Refused) or self.cut is None:
            return False
        if (event.process, event.op) not in self._sent or self._is_later(event) or len(self.cut.before) == self.cut.end:
            return False
        offset = _offset_of(event)
        return offset is None or offset >= self.cut.end

    def judge(self) -> None:
        """Blame what the loss does not allow."""
        cut, world = self.cut, self._world
        if cut is None:
            return
        if not cut.is_covered:
            sent_s = [
                self._sent[event.process, event.op].at_s
                for event in world.history
                if self._rests_on_lost(event) and _offset_of(event) is not None
            ]
            ahead_s = max(sent_s, default=0.0) - min(sent_s, default=0.0)
            if ahead_s > LEAD_S + _LEAD_SLACK_S:
                world.blame(f"answers of {ahead_s:.1f} s are lost with their records, and no mark is left of them")
        after = [self._sent[e.process, e.op] for e in world.history if self._is_later(e)]
        # a worker that kept its power may be cut off from the database, and learns of the published position later
        knew = [one.name for one in after if one.name in cut.knowing or (cut.is_published and one.name in cut.hit)]
        if knew:
            world.blame(
                f"the log lost a record that is known, and {len(knew)} answers were given, the first by {knew[0]}"
            )
        if not self.is_known:
            return
        for offset, value in enumerate(world.topic.values[cut.end :], cut.end):
            with suppress(Undecodable):
                record = decode_record(value, 2)
                if cut.hit == {one.name for one in world.replicas} or (
                    isinstance(record, BarrierRecord) and record.replica in cut.hit
                ):
                    world.blame(f"the log lost a record that is known, and was appended to at {offset}")
                    break
