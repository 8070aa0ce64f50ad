"""Replicas that all serve (`serving = "all"`): their plans, their desks, and what only their runs must keep.

Several doors are open at once, so a client's next attempt mostly goes to another replica. Clocks are apart. Part of the
replicas loses the log while the others go on. Whoever holds the lock is killed, frozen or cut off.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from replica.active.clock_agreement import JUMP_MAX_US
from replica.active.fitness import Limits
from replica.active.log_desk import LogDesk
from replica.active.numbers import writable
from replica.active.serving import MakeServing
from replica.active.worker import Worker
from replica.checker.judge import Judged, JudgedBarrier, JudgedRequest
from replica.notary.errors import StoreUnavailable
from replica.notary.granters import Pause, database_of
from replica.participant import Participant
from replica.store.desk import Desk, DeskSeen, Drawn
from replica.store.memory import MemoryDesk
from tests.simulation.plan import START_US, Fault, FaultKind, Operation, Plan, ReplicaPlan
from tests.simulation.words import WordsAccess

if TYPE_CHECKING:
    from tests.simulation.doubles.database import DatabaseServer
    from tests.simulation.replica import Replica
    from tests.simulation.world import World

_T = TypeVar("_T")
WORKERS_MAX = 5
_APART_MAX_S = 0.9  # of a clock that may stamp
_FAR_APART_S = (-60.0, -1.6, 1.6, 5.0, 60.0)
_FAR_APART_SHARE = 0.25  # of the plans with at least three replicas: one of them has such a clock
_CANDIDATES = 2  # who may lead, in some of the plans with more replicas
_FEW_MAY_LEAD_SHARE = 0.3
_SLACK_US = 200_000  # a round trip to the database, and clocks that run at different rates
_OF_THE_HOLDER = (
    FaultKind.CRASH,
    FaultKind.CRASH_HOST,
    FaultKind.STALL,
    FaultKind.ISLAND,
    FaultKind.SESSION_KILLED,
    FaultKind.SWITCHOVER,
)
_OF_PART = (
    *[FaultKind.LOG_CUT, FaultKind.LOG_CUT, FaultKind.LOG_CLOGGED, FaultKind.LOG_WEATHER],
    *[FaultKind.DATABASE_CUT, FaultKind.DATABASE_WEATHER, FaultKind.STALL, FaultKind.CLOCK_JUMP],
)
_JUMPS_S = (-3600.0, -2.0, -0.5, 0.5, 2.0, 3600.0)
_PAUSED_SHARE = 0.4  # of the plans
_LOOK_S = 1.0  # between two looks at the operators' note
_SHARES = (0.1, 0.3, 0.5)  # of messages that bad weather strikes


# ---- the plan ----


def all_serving(plan: Plan) -> Plan:
    """The same plan for two to five replicas that all serve."""
    random = Random(f"{plan.seed}/workers")
    replicas = _replicas(random, plan)
    faults = list(plan.faults)
    if Random(f"{plan.seed}/workers/candidates").random() < _FEW_MAY_LEAD_SHARE:
        replicas = tuple(replace(one, may_lead=at < _CANDIDATES) for at, one in enumerate(replicas))
    names = {replica.name for replica in replicas}
    faults = [fault if fault.target in names else replace(fault, target="") for fault in faults]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        faults.append(_at_the_holder(random, plan.duration_s))
    for _ in range(random.choice((0, 1, 1, 2))):
        faults += _at_part(random, replicas, plan.duration_s)
    pauses = Random(f"{plan.seed}/workers/pauses")
    if pauses.random() < _PAUSED_SHARE:
        faults.append(_pause(pauses, plan.duration_s))
    clients = [
        client
        for number in range(random.choice((0, 1, 2)))
        for client in _rush(random, 400_000 + 1_000 * number, len(plan.transactions), plan.duration_s)
    ]
    return replace(
        plan,
        all_serve=True,
        replicas=replicas,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
        clients=(*plan.clients, *clients),
    )


def _replicas(random: Random, plan: Plan) -> tuple[ReplicaPlan, ...]:
    """Their settings are the same: a record does not say whose default period it has."""
    period_s = plan.replicas[0].deduplication_max_s
    replicas = [
        ReplicaPlan(
            f"R{number}",
            clock_rate=round(random.choice((1.0, 1.0, random.uniform(0.98, 1.02))), 4),
            restart_s=round(random.uniform(0.1, 1.0), 3),
            deduplication_max_s=period_s,
            clock_apart_s=round(random.uniform(-_APART_MAX_S, _APART_MAX_S), 3) if random.random() < 0.7 else 0.0,
        )
        for number in range(1, random.randint(2, WORKERS_MAX) + 1)
    ]
    if len(replicas) > 2 and random.random() < _FAR_APART_SHARE:
        at = random.randrange(len(replicas))
        replicas[at] = replace(replicas[at], clock_apart_s=random.choice(_FAR_APART_S))
    return tuple(replicas)


def _at_the_holder(random: Random, duration_s: float) -> Fault:
    step = random.choice(("", "", "active.admitting", "active.logged", "active.publishing", "activating.barrier"))
    return Fault(
        random.choice(_OF_THE_HOLDER),
        round(random.uniform(0.05, 0.9) * duration_s, 4),
        step=step,
        skip=random.choice((0, 0, 1, 3)) if step else 0,
        duration_s=round(random.uniform(0.3, 3.5), 3),
    )


def _pause(random: Random, duration_s: float) -> Fault:
    at_s = round(random.uniform(0.1, 0.6) * duration_s, 4)
    return Fault(FaultKind.SERVICE_PAUSED, at_s, duration_s=round(random.uniform(1.0, 6.0), 3))


def _at_part(random: Random, replicas: Sequence[ReplicaPlan], duration_s: float) -> list[Fault]:
    """Some of them, and not all, at about the same time."""
    kind, at_s = random.choice(_OF_PART), random.uniform(0.05, 0.8) * duration_s
    lasts_s = random.choice((0.3, 1.0, 3.5)) * random.uniform(0.5, 1.0)
    return [
        Fault(
            kind,
            round(at_s + random.uniform(0.0, 0.05), 4),
            target=replica.name,
            duration_s=round(lasts_s, 3),
            amount=random.choice(_JUMPS_S if kind is FaultKind.CLOCK_JUMP else _SHARES),
        )
        for replica in random.sample(replicas, random.randint(1, len(replicas) - 1))
    ]


def _rush(random: Random, command: int, transactions: int, duration_s: float) -> list[tuple[Operation, ...]]:
    """Several clients submit the same few transactions at the same moment, mostly through different replicas."""
    at_s = random.uniform(0.1, 0.9) * duration_s
    numbers = [random.randrange(transactions) for _ in range(random.randint(1, 3))]
    return [
        tuple(
            Operation(
                (random.choice(numbers),),
                command + 20 * client + at,
                new_submission_id=random.random() < 0.5,
                verify=random.random() < 0.3,
                think_s=round(at_s + 0.01 * random.random() if at == 0 else 0.02 * random.random(), 4),
                answer_max_s=random.choice((0.2, 1.0, 3.0)),
                attempts_max=random.choice((0, 1, 3)),
            )
            for at in range(random.choice((1, 3, 8)))
        )
        for client in range(random.randint(2, 5))
    ]


# ---- the worker's connection to the shared database ----


def make_worker(world: World, replica: Replica) -> MakeServing:
    """What replica.wiring does."""
    limits = Limits(round(world.election.catch_up_records_per_s), world.plan.core["log_stall_max_s"])
    random = Random(f"{world.plan.seed}/{replica.name}/desk/{world.loop.time()}")

    @asynccontextmanager
    async def open_desk() -> AsyncIterator[Desk]:
        if world.plan.lease:
            words = WordsAccess(world, replica.name)
            yield LogDesk(replica.ledger, words, lambda: world.topic.topic_id, replica.clock, random.randbytes)
        else:
            yield SimulatedDesk(world.route(replica.name), replica.name, world, random)

    return lambda parts, *_: Worker(parts, open_desk, limits, world.election.clock_skew_max_s)


class SimulatedDesk:
    """One connection of a worker. See Desk: questions and answers travel, late or not at all."""

    def __init__(self, server: DatabaseServer, name: str, world: World, random: Random) -> None:
        self._server = server
        self._name = name
        self._world = world
        self._random = random
        self._tables = MemoryDesk(server.tables, lambda: str(server.identity), server.wall_us)

    async def look(self) -> DeskSeen:
        """See Desk."""
        await self._travel()
        seen = await self._tables.look()
        await self._travel()
        return seen

    async def draw(self) -> Drawn:
        """See Desk."""
        await self._travel()
        drawn = await self._tables.draw()
        self._world.story.tell(self._name, "drew", number=drawn.number, database=drawn.database)
        await self._travel()
        return drawn

    async def _travel(self) -> None:
        world, random = self._world, self._random
        weather = world.skies.of(self._name)
        await asyncio.sleep(random.uniform(0.0002, 0.003))
        if weather.database_share and random.random() < weather.database_share:
            what = random.choice(("desk_late", "desk_lost"))
            world.skies.struck(what, self._name)
            await asyncio.sleep(random.choice((0.1, 0.5, 1.5, 4.0)) * random.random() if what == "desk_late" else 60.0)
        if weather.database_cut:
            world.skies.struck("desk_unreachable", self._name)
            await asyncio.sleep(random.uniform(0.1, 1.0))
            raise StoreUnavailable("out of reach")
        if not self._server.accepts or world.route(self._name) is not self._server:
            raise StoreUnavailable("the server is gone")


# ---- a pause of service ----


async def note_pauses(world: World, participant: Participant[Any]) -> None:
    """What a replica's bulletin does for a pause of service: look at the database's note, and tell the participant."""
    random = Random(f"{world.plan.seed}/{participant.name}/pauses/{world.loop.time()}")
    while True:
        await asyncio.sleep(_LOOK_S * random.uniform(0.9, 1.1))
        server = world.route(participant.name)
        if server.accepts and not world.skies.of(participant.name).database_cut:
            paused = server.tables.service_paused
            await asyncio.sleep(random.uniform(0.0002, 0.003))
            participant.note_pause(paused)


class ServicePause(Struct):
    """A pause, from the note to its end. Where a promoted standby or a backup lacks the note, it is over."""

    begun_s: float
    ended_s: float | None = None


class ServicePauses:
    """Operators who pause service, one at a time, and resume it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.all: list[ServicePause] = []

    def begin(self, duration_s: float) -> bool:
        """Write the note; False where the database takes none, or has one."""
        world = self._world
        if not world.primary.accepts or world.primary.tables.service_paused:
            return False
        world.primary.tables.pause_service(True)
        self.all.append(ServicePause(world.loop.time()))
        world.loop.call_later(duration_s, self.end)
        return True

    def end(self) -> None:
        """Resume service, if it is paused."""
        tables = self._world.primary.tables
        if tables.service_paused:
            tables.pause_service(False)
        self.forget()

    def forget(self) -> None:
        """The newest pause is over, if the database that is asked from now on has no note of it."""
        newest = self.all[-1] if self.all else None
        if newest is not None and newest.ended_s is None and not self._world.primary.tables.service_paused:
            newest.ended_s = self._world.loop.time()


def check_pauses(world: World, walked: Sequence[Judged]) -> None:
    """No record of a client counts between the barrier that pauses service and the end of that pause. A primary that
    was succeeded and not fenced may know of no pause, and let service go on."""
    pausing: JudgedBarrier | None = None
    stored_at_s = world.power.stored_at_s()
    for one in walked:
        at_s = stored_at_s[one.offset]
        if isinstance(one, JudgedBarrier) and not one.repeated:
            if isinstance(one.record.granter, Pause):
                pausing = one
            elif pausing is not None and _is_of_an_older_primary(one, pausing):
                pausing = None
        elif isinstance(one, JudgedRequest) and pausing is not None:
            since_s = stored_at_s[pausing.offset]
            for pause in world.service_pauses.all:
                if pause.begun_s <= since_s and at_s < (pause.ended_s or at_s + 1):
                    world.blame(f"record {one.offset} counts, and service is paused since offset {pausing.offset}")


def _is_of_an_older_primary(barrier: JudgedBarrier, than: JudgedBarrier) -> bool:
    older, newer = database_of(barrier.record.granter), database_of(than.record.granter)
    assert older is not None
    assert newer is not None
    return older.system != newer.system or older.timeline < newer.timeline


# ---- what must hold ----


def missing_workers(world: World) -> list[str]:
    """What has not recovered yet: one holder, and every worker whose clock agrees with the database's."""
    cores = [replica.core for replica in world.replicas if replica.core is not None]
    holders = [core for core in cores if core.election.is_leading()]
    if len(holders) != 1:
        return [f"holders: {[core.process.name for core in holders]}"]
    if writable(holders[0].participant.follower.position) is None:
        serving = [core for core in cores if core.claims_to_lead]
        return [] if serving == holders else [f"active: {[core.process.name for core in serving]}"]
    found = []
    for replica in world.replicas:
        if (
            replica.claims_to_lead
            or replica.name == world.power.foreign
            or abs(replica.plan.clock_apart_s) > world.election.clock_skew_max_s
        ):
            continue
        unfit = "down" if replica.core is None else replica.core.participant.serving.unfit
        found.append(f"{replica.name} does not serve: {unfit}")
    return found


def left_over(replica: Replica) -> list[str]:
    """What a replica still holds of submissions, although nobody waits any more."""
    server = None if replica.core is None else replica.core.participant.server
    if server is None:
        return []
    appender, budget = server.appender, server.intake.budget
    held = (budget.submissions, budget.states, len(appender.own.sent), len(appender.held), len(appender.commands))
    return [f"{replica.name} holds {held}"] if any(held) else []


def check_workers(world: World, walked: Sequence[Judged]) -> None:
    """No submission counts more often than it was handed in, and no record is stamped by a clock that is fast."""
    if not world.plan.lease:
        check_pauses(world, walked)
    requests = [one for one in walked if isinstance(one, JudgedRequest)]
    counted = Counter((one.command.command_id, one.command.submission_id) for one in requests)
    for submission, times in counted.items():
        if times > world.handed_in[submission]:
            world.blame(f"{submission} counts {times} times, and was handed in {world.handed_in[submission]} times")
    barred = {replica.name for replica in world.plan.replicas if not replica.may_lead}
    for barrier in (one.record for one in walked if isinstance(one, JudgedBarrier)):
        if barrier.replica in barred:
            world.blame(f"{barrier.replica} took the lock, epoch {barrier.epoch}, and may not lead")
    stored_at_s = world.power.stored_at_s()
    ahead_max_us = round(world.election.clock_skew_max_s * 1e6) + JUMP_MAX_US + _SLACK_US
    for one in requests:
        stored_us = START_US + round(stored_at_s[one.offset] * 1e6)
        if one.record.stamp_us - stored_us > ahead_max_us:
            world.blame(f"record {one.offset} is stamped {one.record.stamp_us - stored_us} us ahead of its arrival")
