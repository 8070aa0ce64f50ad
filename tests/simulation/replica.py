"""One simulated replica: the product's election and participant in a process that dies, stops and is restarted."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from ha.election.driver import Election, Role
from ha.ending import Cause, Ending
from ha.lock.lease import LeaseSession
from ledger_api.server.feed import Feed
from replica.active.activation import Activation
from replica.active.lease_log import FollowedLease
from replica.active.server import Server
from replica.active.serving import HolderServes
from replica.link.interface import (
    DEFAULT_OPTIONS,
    LogQuestion,
    Replies,
    Standing,
    SubmitOptions,
    TicketedAnswer,
    TicketedLookUp,
    TicketedSubmission,
)
from replica.link.interface import LookUpAnswer as AnyAnswer
from replica.link.memory import MemoryLink
from replica.log.beginning import genesis_of
from replica.marks.keeper import MarkKeeper
from replica.marks.lead import NO_LEAD, Lead
from replica.marks.seen_file import MemorySeenFile, SeenDisk
from replica.notary.answers import Notarised, Refused
from replica.notary.formats import Formats
from replica.notary.requests import Submission
from replica.participant import Covering, Leading, Ledger, Participant, Resources
from replica.running import run_to_the_end
from replica.settings import CoreSettings
from replica.store.interface import ParticipantStore
from replica.store.memory import MemoryStore
from replica.store.sqlite.store import EmbeddedStore
from replica.telemetry.core_spans import UNTRACED
from tests.simulation.doubles.clock import SimulatedClock
from tests.simulation.doubles.database import DatabaseSession
from tests.simulation.doubles.disk import Disk, DiskIndex
from tests.simulation.doubles.log import SimulatedLog
from tests.simulation.followers import make_feed
from tests.simulation.ledgers import OwnLedger
from tests.simulation.plan import ReplicaPlan
from tests.simulation.power import SYNC_S, SYNCED, share_marks, tell_marks
from tests.simulation.process import Process
from tests.simulation.words import WatchedBulletin, WordedLease, raised_formats, shared_bound
from tests.simulation.workers import make_worker, note_pauses
from tests.worlds.core_world import KeptNotes

if TYPE_CHECKING:
    from tests.simulation.world import World


class CheapSigner:
    """Signs with a hash that anyone can compute: enough to see what was signed, and a hundred times faster."""

    public_key = b"k" * 32
    blocks = False

    def sign(self, message: bytes) -> bytes:
        return sha256(b"signed" + message).digest() * 2

    @staticmethod
    def holds(_: bytes, message: bytes, signature: bytes) -> bool:
        """Verify a signature."""
        return signature == sha256(b"signed" + message).digest() * 2


@dataclass(slots=True)
class Core:
    """The parts of one run of the core process."""

    process: Process
    log: SimulatedLog
    participant: Participant[DatabaseSession]
    election: Election[DatabaseSession]
    door: Door
    link: MemoryLink
    feed: Feed
    bulletin: WatchedBulletin | None

    def new_link(self, answer_max_s: float, world: World) -> None:
        """A front end loses its core, and another one is started."""
        self.link.cut()
        self.link = MemoryLink(self.door, answer_max_s)
        self.feed = make_feed(self.link, self.process.name, world)

    @property
    def claims_to_lead(self) -> bool:
        """The answer of its health listener; a stopped process gives none."""
        return not self.process.stopped and self.participant.standing().active


class _Leadership:
    """The election as its service sees it; watches who reports the end of a session."""

    def __init__(self, election: Election[DatabaseSession], world: World, name: str) -> None:
        self._election = election
        self._world = world
        self._name = name

    def is_leading(self) -> bool:
        """See Leadership."""
        return self._election.is_leading()

    def step_down(self, ending: Ending) -> None:
        """See Leadership. Only the election may report that its session ended."""
        if ending.cause in _OF_THE_SESSION:
            self._world.blame(
                f"{self._name}: the end of its lock session is reported by another than the session: {ending}"
            )
        self._election.step_down(ending)


class Door:
    """The core's end of the link: messages of front ends wait while the core is stopped, and are lost if it dies."""

    def __init__(
        self,
        process: Process,
        participant: Participant[DatabaseSession],
        told: Told,
        on_recalled: Callable[[Asked, AnyAnswer], None],
        handed_in: Counter[tuple[str, str]],
        generation: Callable[[], int],
    ) -> None:
        """`on_recalled` gets each final answer that names no record of its own; `handed_in` counts submissions, by
        command and submission id; `generation`: of the brokers that the replica reads from."""
        self._generation = generation
        self._handed_in = handed_in
        self._on_recalled = on_recalled
        self._process = process
        self._participant = participant
        self._told = told
        self._notes: dict[Replies, _Noted] = {}  # by front end
        self.word = participant.standing()

    def announce(self) -> None:
        """The core announces its role to the front ends."""
        self.word = self._participant.standing()

    def standing(self) -> Standing:
        """The core's newest announcement, as the front ends got it."""
        return self.word

    def submit(
        self, replies: Replies, batch: list[TicketedSubmission], options: SubmitOptions = DEFAULT_OPTIONS
    ) -> None:
        def arrive() -> None:
            note = self._note(replies, [ticket for ticket, _ in batch])
            note.asked.update((ticket, Asked(one, options, self._newest_us())) for ticket, one in batch)
            self._handed_in.update((one.command_id, one.submission_id) for _, one in batch)
            self._participant.submit(note, batch, options)

        self._process.deliver(arrive)

    def look_up(self, replies: Replies, batch: list[TicketedLookUp]) -> None:
        def arrive() -> None:
            self._participant.look_up(self._note(replies, [ticket for ticket, _ in batch]), batch)

        self._process.deliver(arrive)

    def ask_log(self, replies: Replies, ticket: int, question: LogQuestion) -> None:
        self._process.deliver(lambda: self._participant.ask_log(replies, ticket, question))

    def _newest_us(self) -> int:
        """The newest time of the log as far as the replica has read it."""
        position = self._participant.follower.position
        return 0 if position is None else position.stamp_us

    def unanswered(self) -> int:
        """Submissions and look-ups that the core has not answered."""
        return sum(len(note.epochs) for note in self._notes.values())

    def _note(self, replies: Replies, tickets: list[int]) -> _Noted:
        note = self._notes.setdefault(
            replies, _Noted(replies, self._participant.name, self._told, self._on_recalled, self._generation)
        )
        activation = self._participant.activation
        note.epochs.update(dict.fromkeys(tickets, 0 if activation is None else activation.epoch))
        return note


class Sent(NamedTuple):
    """An answer on its way: the replica that gave it, the epoch of the question, when it left, and the generation of
    the brokers from which that replica read the log."""

    answer: AnyAnswer
    name: str
    epoch: int
    at_s: float
    generation: int


Told = dict[int, Sent]
"""By the answer's address."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A submission, with the newest time of the log that its replica knew when it came."""

    submission: Submission
    options: SubmitOptions
    stamp_us: int


class _Noted:
    """Replies that record which replica answered, and the epoch of the question."""

    def __init__(
        self,
        replies: Replies,
        name: str,
        told: Told,
        on_recalled: Callable[[Asked, AnyAnswer], None],
        generation: Callable[[], int],
    ) -> None:
        self._generation = generation
        self.epochs: dict[int, int] = {}  # by ticket
        self.asked: dict[int, Asked] = {}
        self._on_recalled = on_recalled
        self._replies = replies
        self._name = name
        self._told = told

    def send(self, answers: Sequence[TicketedAnswer]) -> None:
        for ticket, answer in answers:
            at_s = asyncio.get_running_loop().time()
            self._told[id(answer)] = Sent(answer, self._name, self.epochs.pop(ticket), at_s, self._generation())
            asked = self.asked.pop(ticket, None)
            if asked is not None and isinstance(answer, Notarised | Refused) and answer.record_offset is None:
                self._on_recalled(asked, answer)
        self._replies.send(answers)

    def wait(self, tickets: Sequence[int], wait_s: float) -> None:
        self._replies.wait(tickets, wait_s)


class Replica:
    """A machine with its disk and clocks, and the processes that run on it one after the other."""

    def __init__(self, plan: ReplicaPlan, world: World) -> None:
        self.name = plan.name
        self.plan = plan
        self.disk = Disk()
        self.clock = SimulatedClock(plan.clock_rate, plan.clock_apart_s)
        self.core: Core | None = None
        self.told: Told = {}
        self.seen = SeenDisk()  # the part of its disk with the seen file
        self.ledger = OwnLedger(world, plan.name)  # used where replicas share no database
        self._world = world
        self._starts = 0
        self._restart: asyncio.TimerHandle | None = None

    # ---- life ----

    def start(self, *, after_failure: bool) -> None:
        """The supervisor starts the program."""
        if self.core is not None:
            return
        self._starts += 1
        process = Process(self.name)
        process.on_step = self._world.on_step_of(self)
        self._world.story.tell(self.name, "start", after_failure=after_failure or None)
        process.start(self._run(process, after_failure))

    async def _run(self, process: Process, after_failure: bool) -> None:
        """What replica.wiring does, without sockets and signals."""
        core = self._build(process, after_failure)
        core.participant.start()
        beside = []
        if core.bulletin is not None:
            beside += [
                core.bulletin.run(core.participant.note_pause),
                shared_bound(self._world, self, core.participant).run(),
            ]
        beside.append(tell_marks(self._world, core))
        if not self._world.plan.lease:
            beside.append(share_marks(self._world, core))
        if self._world.plan.all_serve and core.bulletin is None:
            beside.append(note_pauses(self._world, core.participant))
        running = [asyncio.create_task(work) for work in beside]
        error: Exception | None = None
        try:
            await run_to_the_end(
                core.participant, core.election, asyncio.Event().wait(), stop_max_s=2 * self._world.election.drain_max_s
            )
        except Exception as failure:
            error = failure
        self._world.activation_told(core.participant, error)
        if core.bulletin is not None:
            await core.bulletin.flush()
        await core.participant.marks.leave()
        for task in running:
            task.cancel()
        await core.participant.stop()
        self._world.loop.call_soon(self.ended, process, error, context=self._world.context.copy())

    def _build(self, process: Process, after_failure: bool) -> Core:
        world, plan = self._world, self._world.plan
        random = Random(f"{plan.seed}/{self.name}/{self._starts}")
        settings = CoreSettings(
            standby=self.plan.standby,  # type: ignore[arg-type]
            deduplication_max_s=self.plan.deduplication_max_s,
            **plan.core,  # type: ignore[arg-type]
        )
        log = world.make_log(self.name, process)

        def generation() -> int:
            return log.generation if isinstance(log, SimulatedLog) else 0

        def on_recalled(asked: Asked, answer: AnyAnswer) -> None:
            if not world.power.is_past(generation()):
                world.recalled.append((self.name, asked, answer))

        marks = MarkKeeper(
            self.name,
            MemorySeenFile(self.seen, SYNC_S),
            self.clock,
            [other.name for other in world.replicas if other is not self],
            database=not plan.lease,
        )
        bulletin = WatchedBulletin(world, self.name, marks) if plan.worded else None

        def lock_session() -> Any:
            if not plan.lease:
                route = world.route(self.name)
                return DatabaseSession(route, name=self.name, settings=world.election, clock=self.clock)
            raised = raised_formats(world, self.name)
            lease_log = (
                FollowedLease(log, participant.follower, random.randbytes, self.clock.wall_us, raised)
                if bulletin is None
                else WordedLease(log, participant.follower, random.randbytes, self.clock.wall_us, raised, bulletin)
            )
            return LeaseSession(
                lease_log,
                name=self.name,
                settings=world.election,
                clock=self.clock,
                gives_back=lambda: not plan.all_serve or bulletin is None or bulletin.pause is None,
            )

        def make_store(session: Any) -> ParticipantStore:
            if not plan.lease:
                return MemoryStore(session, session.server.tables)
            note_end = None if bulletin is None else bulletin.note_end
            return EmbeddedStore(self.ledger, world.topic.topic_id, Formats(), note_end)

        election: Election[Any] = Election(
            lock_session,
            clock=self.clock,
            settings=world.election,
            random=random,
            after_failure=after_failure,
        )
        participant: Participant[Any] = Participant(
            Resources(
                name=self.name,
                request_log=log,
                require=genesis_of,
                index=DiskIndex(self.disk, self.name, world.skies, plan.blind),
                salvages=world.salvages,
                signer=CheapSigner(),
                clock=self.clock,
                random_bytes=random.randbytes,
                settings=settings,
                trace=UNTRACED,
            ),
            Covering(marks, NO_LEAD if plan.durability == SYNCED else Lead(settings.exposed_max_records)),
            Ledger(make_store, self.ledger if plan.lease else None),  # type: ignore[arg-type]
            Leading(
                _Leadership(election, world, self.name),
                bulletin or KeptNotes(),
                may_lead=self.plan.may_lead,
                in_term=lambda: True,
            ),
            make_worker(world, self) if plan.all_serve else HolderServes,
        )
        door = Door(
            process,
            participant,
            self.told,
            on_recalled,
            world.handed_in,
            generation,
        )
        participant.on_standing_changed(lambda: self._announced(door))
        link = MemoryLink(door, world.link_answer_max_s)
        feed = make_feed(link, self.name, world)
        self.core = Core(process, log, participant, election, door, link, feed, bulletin)
        return self.core

    def _announced(self, door: Door) -> None:
        door.announce()
        if self.core is not None:
            self.core.link.standing_changes.notify()
        self._world.claims_changed(self)

    def ended(self, process: Process, error: BaseException | None) -> None:
        """The process ended by itself."""
        if process.alive:
            self._world.story.tell(self.name, "ended", error=None if error is None else f"{error!r}")
            self._world.note_end(self, error)
            self.kill(heard_s=0.001)
            self.restart_later(after_failure=error is not None)

    def kill(self, heard_s: float | None) -> None:
        """The process ends at once. The database notices after `heard_s`; None: never."""
        core, self.core = self.core, None
        if core is None:
            return
        core.process.kill()
        self._world.buried.append(core.process)
        core.link.cut()
        if heard_s is not None:
            self._world.lives.process_ended(core.process)
            for server in self._world.servers:
                server.process_ended(core.process, heard_s)

    def restart_later(self, *, after_failure: bool, after_s: float = 0.0) -> None:
        """The supervisor's pause, which begins `after_s` from now."""
        if self._restart is not None:
            self._restart.cancel()
        loop = self._world.loop
        self._restart = loop.call_later(after_s + self.plan.restart_s, lambda: self.start(after_failure=after_failure))

    # ---- what others see ----

    def step(self) -> str:
        """The replica's present step: one of plan.STEPS, "starting" or "down"."""
        core = self.core
        if core is None:
            return "down"
        activation = core.participant.activation
        match core.election.role:
            case Role.PASSIVE:
                return "passive"
            case Role.ACTIVATING:
                if activation is None:
                    return "activating.identity"
                left = (f"activating.{step}" for step in _ACTIVATION if step not in activation.steps_s)
                return next(left, "activating.publish_backlog")
            case Role.ACTIVE if activation is not None:
                return _busy_with(activation, core.participant.server)
            case Role.STEPPING_DOWN:
                return "stepping_down.release" if activation is None else "stepping_down.drain"
            case _:
                return "starting"

    @property
    def claims_to_lead(self) -> bool:
        """The answer of its health listener."""
        return self.core is not None and self.core.claims_to_lead


_OF_THE_SESSION = (Cause.LOCK_LOST, Cause.NO_ANSWER)  # causes that only the election reports
_ACTIVATION = ("epoch", "open_log", "verify_lock", "barrier", "publish_backlog")


def _busy_with(activation: Activation, server: Server | None) -> str:
    if server is not None and server.admission.admitting:
        return "active.admitting"
    if server is not None and server.appender.own.sent:
        return "active.logged"
    return "active.publishing" if activation.publisher._queue else "active.idle"
