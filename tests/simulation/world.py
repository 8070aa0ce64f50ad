"""A run: builds the world of a plan, injects faults, heals them, and reports whether all promises were kept."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from ha.election.driver import Role
from ha.ending import Cause
from ha.errors import LockLost, TransitionFailed
from ha.settings import ElectionSettings
from replica.checker.history import Event
from replica.link.interface import SubmitOptions
from replica.notary.answers import Answer, DeduplicationBound
from replica.notary.errors import IndexUnreadable
from replica.notary.salvage import NO_SALVAGES, Salvage, Salvages
from replica.participant import Participant
from tests.next_version.release import PRESENT, registered
from tests.simulation.clients import AFTER_HEALING_MAX, Balancer, Client, Content, Stranger
from tests.simulation.doubles.database import DatabaseServer, Tables
from tests.simulation.doubles.log import SimulatedLog, Topic
from tests.simulation.followers import Follower
from tests.simulation.lives import Lives, WatchedLog
from tests.simulation.misfortune import Misfortune
from tests.simulation.parties import BEGINNING, Officer
from tests.simulation.plan import FaultKind, Plan
from tests.simulation.power import FOREIGN_S, Power
from tests.simulation.process import Process, SimulatedTask, make_task
from tests.simulation.replica import Asked, Replica
from tests.simulation.story import Story
from tests.simulation.verdict import judge_run
from tests.simulation.virtual import run_virtually
from tests.simulation.weather import Skies
from tests.simulation.words import SETTLED_MAX_S, People, WordsNodes
from tests.simulation.workers import ServicePauses, left_over, missing_workers

_FORGETS = (FaultKind.DATABASE_FAIL_OVER, FaultKind.DATABASE_SPLIT)
_RECORDS_MAX = 20_000
_LOOKED_S = 0.5  # by then every follower of the log has read what arrived in it
_SIGNS_ON_THEIR_WAY = 4  # records by which a holder and two waiters may be ahead of readers and publisher


@dataclass(slots=True)
class Outcome:
    """The result of a run."""

    plan: Plan
    violations: list[str]
    story: Story
    strikes: Counter[tuple[str, str]]  # misfortune and step -> how often
    operations: int  # attempts of clients, look-ups included
    records: int
    epochs: int
    virtual_s: float
    counts: Counter[str] = field(default_factory=Counter)


def simulate(plan: Plan, make_world: Callable[[Plan], World] | None = None) -> Outcome:
    """Run a plan from start to end. The same plan gives the same outcome, event by event."""
    with registered() if plan.registers else nullcontext():
        return run_virtually(_run(plan, make_world or World))


async def _run(plan: Plan, make_world: Callable[[Plan], World]) -> Outcome:
    world = make_world(plan)
    with world.story.hears_logs():
        return await world.run()


class World:
    """Everything outside the replicas, and the replicas."""

    def __init__(self, plan: Plan) -> None:
        SimulatedTask.numbers = count()
        self.plan = plan
        self.loop = asyncio.get_running_loop()
        self.loop.set_task_factory(make_task)
        self.loop.set_exception_handler(self._not_handled)
        self.context = copy_context()
        self.story = Story()
        self.skies = self.make_skies(Random(f"{plan.seed}/world"), Random(f"{plan.seed}/finding"))
        self.election = ElectionSettings(kind="lease" if plan.lease else "database", **plan.election)
        self.append_linger_s = 0.004
        self.link_answer_max_s = 4 * self.election.lease_s
        self.violations: list[str] = []
        self.history: list[Event] = []
        self.attempts = 0
        self.accepted: set[tuple[str, str]] = set()  # command and submission id of those that are to complete
        self.forgotten: set[tuple[str, str]] = set()  # the same, for those that a standby never got
        self.handed_in: Counter[tuple[str, str]] = Counter()  # command and submission id, at any replica
        self.options: dict[str, SubmitOptions] = {}  # by submission id: the options that its sender chose
        self.bounds_told: list[tuple[SubmitOptions, DeduplicationBound]] = []  # of refused periods
        self.recalled: list[tuple[str, Asked, object]] = []  # final answers of replicas that name no record
        self.beginning = BEGINNING  # synced everywhere before the run
        self.topic = self.make_topic()
        self.lives = Lives(Random(f"{plan.seed}/lives"))
        self.salvages = NO_SALVAGES  # what every replica was given
        tables = Tables(self.story, any(fault.kind in _FORGETS for fault in plan.faults))
        tables.formats = PRESENT
        self.primary = self._server(tables, 1)
        self.deposed: DatabaseServer | None = None  # a primary that has not noticed that it was deposed
        self.on_deposed: set[str] = set()  # the replicas that still connect to it
        self.servers = [self.primary]
        self.doubt_until_s = -1.0  # until then two may claim to lead: a session was ended before its lease
        self.buried: list[Process] = []
        self.content = Content(plan.transactions)
        self.replicas = [Replica(replica, self) for replica in plan.replicas]
        self._by_name = {replica.name: replica for replica in self.replicas}
        self.balancer = Balancer(self, 0.1)
        self.clients = [Client(number, operations, self) for number, operations in enumerate(plan.clients)]
        self.followers = [Follower(0, self, updates=False), Follower(1, self, updates=True)]
        self.stranger = Stranger(self)
        self.words = WordsNodes(self)
        self.people = People(self)
        self.service_pauses = ServicePauses(self)
        self.officer = Officer(self)
        self.misfortune = Misfortune(self)
        self.power = Power(self)
        self.splits = 0
        self.healed = False
        self._terminated: set[str] = set()

    def make_skies(self, random: Random, views: Random) -> Skies:
        """The weather of all replicas."""
        return Skies(random, lambda name: self.replica(name).step(), views)

    def make_topic(self) -> Topic:
        """The log of all replicas."""
        return Topic(self.story, values=self.beginning)

    def make_log(self, name: str, process: Process) -> Any:
        """A replica's access to it."""
        kind = WatchedLog if self.plan.watched else SimulatedLog
        log = kind(self.topic, name, process, self.skies, self.story, self.append_linger_s)
        if isinstance(log, WatchedLog):
            log.lives = self.lives
        return log

    def lose_log(self, end: int, off_s: float) -> None:
        """The brokers lose power, and the records from `end` on; nobody reaches them for `off_s`."""
        self.topic.lose(end)
        for replica in self.replicas:
            self.misfortune.cut_log(replica, off_s)

    # ---- the run ----

    async def run(self) -> Outcome:
        """Faults first, recovery after; then the judgement."""
        tasks = [asyncio.create_task(self.balancer.run())]
        for replica in self.replicas:
            replica.start(after_failure=False)
        tasks += [asyncio.create_task(follower.run()) for follower in self.followers]
        tasks.append(asyncio.create_task(self.stranger.run()))
        if self.plan.registers:
            tasks.append(asyncio.create_task(self.officer.run()))
        clients = [asyncio.create_task(client.run()) for client in self.clients]
        self.misfortune.plan()
        await self.pass_time(self.plan.duration_s)
        self.story.tell("world", "heal")
        self.healed = True
        self.misfortune.heal()
        if self.power.must_stop:
            await self.power.stand_still()
        elif self.power.may_stop:  # who knows ends, and others do not believe it
            await self.pass_time(self.loop.time() + FOREIGN_S)
        else:
            await self._recover(clients)
        if self.plan.hostile and not self.violations and not self.power.may_stop:
            await self._withstand(clients)
        for task in clients:
            if task.done():
                task.result()  # raises what broke a client: a mistake of the simulator's
        for task in tasks:
            if task.done():
                task.result()
        self.people.raise_errors()
        for task in (*tasks, *clients):
            task.cancel()
        await asyncio.gather(*tasks, *clients, return_exceptions=True)
        virtual_s = self.loop.time()
        summary = judge_run(self)
        for replica in self.replicas:
            replica.kill(heard_s=None)
        await asyncio.sleep(0)
        await (
            self.topic.end()
        )  # nothing is awaited after the burials: a `finally` of the dead may cancel this task then
        for process in self.buried:
            process.bury()
        return Outcome(
            self.plan,
            self.violations,
            self.story,
            self.skies.strikes,
            self.attempts,
            self.topic.end_offset,
            len(summary.epochs),
            virtual_s,
            Counter(summary.answers),
        )

    async def pass_time(self, until_s: float) -> None:
        """Let the run continue, unless it runs away."""
        while self.loop.time() < until_s and not self._runs_away():
            await asyncio.sleep(min(0.25, until_s - self.loop.time()))

    def _runs_away(self) -> bool:
        """No plan comes near this many records: something repeats for ever."""
        if self.topic.end_offset < _RECORDS_MAX:
            return False
        self.blame(f"more than {_RECORDS_MAX} records")
        return True

    async def _recover(self, clients: list[asyncio.Task[None]]) -> None:
        """Wait for recovery, at most as long as the settings promise, clients' own pauses included."""
        election = self.election
        limit_s = 10.0 + 2 * election.hold_down_s + 4 * election.lease_s + election.grace_s + self._think_max_s()
        limit_s += SETTLED_MAX_S if self.plan.worded else 0.0
        until_s = self.loop.time() + limit_s
        while missing := self._missing(clients):
            if self._runs_away():
                return
            if self.loop.time() > until_s:
                self.blame(f"not recovered {limit_s:.0f} s after the last fault: {'; '.join(missing)}")
                return
            await asyncio.sleep(0.1)

    async def _withstand(self, clients: list[asyncio.Task[None]]) -> None:
        """After recovery only strangers send: nothing of it may end the present activation.

        What was on its way has arrived before: a barrier that was held up ends an activation by right, and so does a
        statement whose answer is lost, or a writer that lost its connection and is seen to stall.
        """
        noticed_s = max(2 * self.election.lease_s, self.plan.core["log_stall_max_s"] + _LOOKED_S)
        await self.pass_time(max(self.skies.landed_by_s + _LOOKED_S, self.plan.duration_s + noticed_s))
        await self._recover(clients)
        if self.violations:
            return
        before = self._activations()
        for hostile in self.plan.hostile:
            if not await self.stranger.send(hostile):
                self.blame(f"a stranger was not answered: {hostile}")
        await asyncio.sleep(self.plan.core["log_stall_max_s"] + 1.0)
        if self._activations() != before:
            self.blame(f"strangers ended an activation: {before} became {self._activations()}")
        if missing := self._missing(clients):
            self.blame(f"strangers did harm: {'; '.join(missing)}")

    def _activations(self) -> list[tuple[str, int]]:
        """Who leads, in which epoch."""
        return [(r.name, r.core.participant.epoch) for r in self.replicas if r.core is not None and r.claims_to_lead]

    def _think_max_s(self) -> float:
        """How long a client may still pause after all faults are healed."""
        thinks_s = [operation.think_s for client in self.plan.clients for operation in client]
        return AFTER_HEALING_MAX * max(thinks_s, default=0.0)

    def _missing(self, clients: list[asyncio.Task[None]]) -> list[str]:
        """What has not recovered yet."""
        missing = []
        leaders = [replica.name for replica in self.replicas if replica.claims_to_lead]
        if self.plan.all_serve:
            missing += missing_workers(self)
        elif len(leaders) != 1:
            missing.append(f"active: {leaders}")
        waiting = [client.name for client, task in zip(self.clients, clients, strict=True) if not task.done()]
        if waiting:
            missing.append(f"waiting for final answers: {waiting}")
        if missing:
            return missing
        missing += self._left_over()
        missing += self.people.missing() if self.plan.worded else []
        if self.plan.registers and not self.officer.is_done:
            missing.append("the officer's last registration")
        end = self.topic.end_offset - 1
        newest = end - _SIGNS_ON_THEIR_WAY if self.plan.lease else end
        for replica in self.replicas:
            if replica.name == self.power.foreign:
                continue
            at = -1 if replica.core is None else replica.core.participant.follower.applied_offset
            if not newest <= at <= end and (replica.plan.standby == "following" or replica.claims_to_lead):
                missing.append(f"{replica.name} applied to {at} of {end}")
        published = self.primary.tables.position
        if published is None or not newest <= published.offset <= end:
            missing.append(f"published to {None if published is None else published.offset} of {end}")
        behind = [follower.name for follower in self.followers if follower.offset < self.primary.tables.ledger_end]
        if behind:
            missing.append(f"not told of every completion: {behind}")
        return missing

    def _left_over(self) -> list[str]:
        """What a replica still holds of submissions, although nobody waits any more."""
        left = []
        for replica in self.replicas:
            left += left_over(replica)
            core = replica.core
            if core is None:
                continue
            if unanswered := core.door.unanswered():
                left.append(f"{replica.name} has not answered {unanswered}")
            activation = core.participant.activation
            if activation is not None and activation.budget.unpublished:
                left.append(f"{replica.name} has {activation.budget.unpublished} completions to publish")
        return left

    # ---- what replicas and clients see of the world ----

    def replica(self, name: str) -> Replica:
        """A replica by name."""
        return self._by_name[name]

    def route(self, name: str) -> DatabaseServer:
        """The server that a replica connects to."""
        return self.deposed if self.deposed is not None and name in self.on_deposed else self.primary

    def now_ns(self) -> int:
        """Time of the history."""
        return int(self.loop.time() * 1e9)

    def note(self, event: Event) -> None:
        """Add to the history."""
        self.history.append(event)

    def who_told(self, answer: Answer, name: str, to: tuple[str, int]) -> tuple[str | None, int | None]:
        """The replica that gave an answer to an operation, and its epoch then; empty, if the core gave none."""
        if not name:
            return None, None
        found = self.replica(name).told.pop(id(answer), None)
        if found is None or found.answer is not answer:
            return None, None
        self.power.note_sent(*to, found)
        return found.name, found.epoch

    # ---- watching ----

    def on_step_of(self, replica: Replica) -> Callable[[], None] | None:
        """What to call after each turn of a replica's tasks, if anything waits for it."""
        return self.misfortune.watch(replica)

    def claims_changed(self, replica: Replica) -> None:
        """Check that no two replicas claim to lead, unless a session was cut short."""
        if replica.core is None or not replica.claims_to_lead or self.plan.all_serve:
            return
        activation = replica.core.participant.activation
        if replica.core.election.role is not Role.ACTIVE or activation is None or activation.holder.in_force is None:
            self.blame(f"{replica.name} claims to lead while {replica.step()}")
        leaders = [other.name for other in self.replicas if other.claims_to_lead]
        if len(leaders) > 1 and self.deposed is None and self.loop.time() > self.doubt_until_s:
            self.blame(f"{leaders} claim to lead at the same time")

    def holder(self) -> str:
        """The replica that has the lock; under a lease the one that leads. Empty if there is none."""
        if not self.plan.lease:
            return self.primary.holder()
        return next((replica.name for replica in self.replicas if replica.claims_to_lead), "")

    def sessions_cut_short(self) -> None:
        """Sessions ended before their lease: for a while two may claim to lead."""
        self.doubt_until_s = max(self.doubt_until_s, self.loop.time() + 2 * self.election.lease_s)

    def terminate(self, replica: Replica) -> None:
        """SIGTERM; the supervisor starts it again once it has ended."""
        if replica.core is not None:
            self._terminated.add(replica.name)
            replica.core.process.deliver(replica.core.election.stop)

    def note_end(self, replica: Replica, error: BaseException | None) -> None:
        """A process ended by itself: only some reasons are allowed."""
        asked = replica.name in self._terminated
        self._terminated.discard(replica.name)
        if error is None and asked:
            return
        if self.power.allows(replica, error):
            return
        late = isinstance(error, TransitionFailed) and "took more than" in str(error)
        disk = isinstance(error, IndexUnreadable) or isinstance(error and error.__cause__, IndexUnreadable)
        if not late and not disk and not (asked and "did not end within" in str(error)):
            self.blame(f"{replica.name} ended: {error!r}")

    def activation_told(self, participant: Participant[Any], error: BaseException | None) -> None:
        """A process ends by itself: if it failed, the stored end of its last epoch must not say that it was stopped."""
        asked = participant.name in self._terminated
        if error is not None and not asked and participant.counters.step_downs[Cause.STOP]:
            self.blame(f"{participant.name} ended by {error!r}, and told its epoch that it was stopped")

    def blame(self, violation: str) -> None:
        """Record a broken promise."""
        self.story.tell("VIOLATED", violation)
        self.violations.append(violation)

    def _server(self, tables: Tables, timeline: int, system: str = "simulated") -> DatabaseServer:
        return DatabaseServer(self.skies, self.story, tables, election=self.election, timeline=timeline, system=system)

    def fail_over(self, forget: int, *, old_lives_on: bool) -> None:
        """A standby becomes primary; it missed the last commits."""
        old = self.primary
        self._promote(self._server(old.tables.without_last(forget), *_next_line(old)), old_lives_on=old_lives_on)

    def restore(self, backup: Tables, *, elsewhere: bool) -> None:
        """A backup takes the primary's place: replayed by a server of the same system, or loaded `elsewhere`."""
        timeline, system = _next_line(self.primary)
        if elsewhere:
            timeline, system = 1, f"restored-{len(self.servers)}"
        self._promote(self._server(backup, timeline, system), old_lives_on=False)

    def hold_salvage(self, salvage: Salvage) -> None:
        """Every replica has the salvage from its next start on."""
        self.salvages = Salvages([*self.salvages.held.values(), salvage])

    def _promote(self, primary: DatabaseServer, *, old_lives_on: bool) -> None:
        old, self.primary = self.primary, primary
        self.service_pauses.forget()
        self.primary.interrupted = old.interrupted | {old.holder()} - {""}
        self.servers.append(self.primary)
        self.sessions_cut_short()
        if old_lives_on:
            self.deposed = old
        else:
            old.accepts = False
            old.end_all()

    def _not_handled(self, _: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        error = context.get("exception")
        if not isinstance(error, LockLost):
            self.story.tell("world", f"not handled: {context.get('message')} {error!r}")


def _next_line(server: DatabaseServer) -> tuple[int, str]:
    """Timeline and system of what goes on from a server's data."""
    return server.identity.timeline + 1, server.identity.system_identifier
