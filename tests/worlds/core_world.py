"""Whole cores on virtual time: the product's participant and election over the doubles in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ha.election.driver import Election
from ha.lock.memory import MemoryLockServer, MemoryLockSession
from ha.settings import ElectionSettings
from replica.active.derived_ledger import DerivedLedger
from replica.active.fitness import Limits
from replica.active.parts import Parts
from replica.active.server import Server
from replica.active.serving import HolderServes
from replica.active.signer import FileSigner
from replica.active.worker import Worker
from replica.index.memory import MemoryIndex
from replica.link.interface import DEFAULT_OPTIONS, SubmitOptions
from replica.link.memory import MemoryLink
from replica.log.beginning import genesis_of
from replica.log.memory import Delivery, MemoryLog, MemoryTopic
from replica.marks.keeper import MarkKeeper
from replica.marks.lead import NO_LEAD, Lead
from replica.marks.seen_file import MemorySeenFile, SeenDisk
from replica.notary.answers import Answer
from replica.notary.position import Position
from replica.notary.requests import DEDUPLICATION_LIMIT_S, Submission, TimeWindow, make_request
from replica.notary.salvage import NO_SALVAGES
from replica.notary.terms import Terms, decode_canonical, encode_canonical
from replica.participant import Covering, Leading, Ledger, Participant, Resources
from replica.settings import CoreSettings
from replica.store.interface import Completion, ParticipantStore
from replica.store.memory import MemoryDatabase, MemoryDesk, MemoryStore
from replica.store.sqlite.store import EmbeddedStore
from replica.telemetry.core_spans import UNTRACED, Trace
from tests.next_version.release import PRESENT
from tests.worlds.beginning import LEDGER, Registered, beginning
from tests.worlds.ha_world import LoopClock

PARTY = "CN=Alice,O=Test,C=GB"
KEY = b"k" * 32  # of the party: no signature is checked here
ANNA = FileSigner(Ed25519PrivateKey.from_private_bytes(bytes([1]) * 32))  # the first officer
BEGUN = 3  # records of a new log
FIRST_EPOCH = 2  # of a replica: the log begins with another leader
SIGNER = FileSigner(Ed25519PrivateKey.from_private_bytes(b"\x07" * 32))
LIFE_MAX_S = 60.0
SYNC_S = 0.005  # of a seen file
TELL_EVERY_S = 0.25


def name_of(number: int) -> bytes:
    """A transaction id that tests can read."""
    return number.to_bytes(32, "big")


def state(tx: int, index: int = 0) -> bytes:
    """A state reference that tests can read."""
    return name_of(tx) + index.to_bytes(4, "big")


def submission(
    tx: int,
    inputs: list[bytes] = (),  # type: ignore[assignment]
    references: list[bytes] = (),  # type: ignore[assignment]
    window: TimeWindow | None = None,
    command_id: str | None = None,
    submission_id: str = "s",
    user_id: str = "user",
) -> Submission:
    """A submission whose command id is its transaction's number unless one is given; no signature is checked here."""
    request = make_request(name_of(tx), list(inputs), list(references), window, PARTY, ledger_id=LEDGER)
    command = command_id or f"c{tx}"
    raw = encode_canonical(request, Terms(user_id, command, (PARTY,)))
    return Submission(raw, KEY, b"s" * 64, user_id, command, (PARTY,), submission_id)


def signed_for(options: SubmitOptions, one: Submission) -> Submission:
    """The submission as if it had been signed with these options; as it is, where nobody could sign for them."""
    if options.deduplication_s is None and options.deduplication_after is None:
        return one
    if options.deduplication_s is not None and not 0 <= options.deduplication_s <= DEDUPLICATION_LIMIT_S:
        return one
    request, _, terms, _ = decode_canonical(one.request)
    period_us = None if options.deduplication_s is None else round(options.deduplication_s * 1e6)
    signed = msgspec.structs.replace(terms, deduplication_us=period_us, ledger_offset=options.deduplication_after)
    return msgspec.structs.replace(one, request=encode_canonical(request, signed))


def begun_topic(*more: Registered) -> MemoryTopic:
    """A topic in which ANNA, the officer, registered the key of `submission`, and these parties' keys."""
    return MemoryTopic(values=beginning(ANNA, (PARTY, KEY), *more))


@dataclass
class Shared:
    """What the replicas share, and what outlives them."""

    clock: LoopClock = field(default_factory=LoopClock)
    topic: MemoryTopic = field(default_factory=begun_topic)
    database: MemoryDatabase = field(default_factory=MemoryDatabase)
    election: ElectionSettings = field(default_factory=ElectionSettings)
    core: CoreSettings = field(default_factory=CoreSettings)
    seed: int = 1
    all_serve: bool = False  # each replica has a worker
    peers: tuple[str, ...] = ()  # the names of all replicas, where they tell one another their marks
    survives_power_loss: bool = True  # the log does, so nothing is exposed
    publishing: asyncio.Event | None = None  # completions are published while it is set; None: always

    def __post_init__(self) -> None:
        self.database.formats = PRESENT
        self.lock_server = MemoryLockServer(self.clock, lease_s=self.election.lease_s)


class KeptNotes:
    """Keeps what a replica leaves to be recorded later; nobody pauses it."""

    def __init__(self) -> None:
        self.ended: list[tuple[int, str]] = []

    def is_barred(self) -> bool:
        return False

    def note_end(self, epoch: int, reason: str) -> None:
        self.ended.append((epoch, reason))


class Replica:
    """One core, from `start` until `stop` or `crash`; its index stays."""

    def __init__(
        self,
        shared: Shared,
        name: str,
        index: MemoryIndex | None = None,
        trace: Trace = UNTRACED,
        delivery: Callable[[], Delivery] = Delivery,
        folder: Path | None = None,
        disk: SeenDisk | None = None,
    ) -> None:
        """`folder`: of a ledger of its own, which it derives; without one it publishes to the shared database. `disk`:
        where its seen file is."""
        self.shared = shared
        self.name = name
        self.index = index or MemoryIndex()
        random = Random(f"{shared.seed} {name}")
        self.log = MemoryLog(shared.topic, delivery)
        self.notes = KeptNotes()
        self.site_in_term = True  # whether its site may serve
        self.ledger = (
            None
            if folder is None
            else DerivedLedger(folder, self.log, self.index, clock=shared.clock, settings=shared.core)
        )
        self.election: Election[MemoryLockSession] = Election(
            self._session, clock=shared.clock, settings=shared.election, random=random
        )
        marks = MarkKeeper(
            name, MemorySeenFile(disk, SYNC_S), shared.clock, [peer for peer in shared.peers if peer != name]
        )
        self.participant: Participant[MemoryLockSession] = Participant(
            Resources(
                name=name,
                request_log=self.log,
                require=genesis_of,
                index=self.index,
                salvages=NO_SALVAGES,
                signer=SIGNER,
                clock=shared.clock,
                random_bytes=random.randbytes,
                settings=shared.core,
                trace=trace,
            ),
            Covering(marks, NO_LEAD if shared.survives_power_loss else Lead(shared.core.exposed_max_records)),
            Ledger(self._store, self.ledger),
            Leading(self.election, self.notes, may_lead=True, in_term=lambda: self.site_in_term),
            self._worker if shared.all_serve else HolderServes,
        )
        self.link = MemoryLink(self.participant)
        self.participant.on_standing_changed(self.link.standing_changes.notify)
        self._election_task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.participant.start()
        self._election_task = asyncio.create_task(self.election.run(self.participant))

    async def stop(self) -> None:
        """In order, as after SIGTERM."""
        if self._election_task is not None:
            self.election.stop()
            await self._election_task
            self._election_task = None
        await self.participant.stop()

    async def until_active(self) -> None:
        async with asyncio.timeout(LIFE_MAX_S):
            while not self.participant.standing().active:
                await asyncio.sleep(0.01)

    async def submit(self, *submissions: Submission, options: SubmitOptions = DEFAULT_OPTIONS) -> list[Answer]:
        return await self.link.submit([signed_for(options, one) for one in submissions], options)

    @property
    def server(self) -> Server:
        """What takes submissions here at this moment."""
        assert self.participant.server is not None
        return self.participant.server

    def _worker(self, parts: Parts, *_: object) -> Worker:
        limits = Limits(lag_records_max=1_000, unread_max_s=self.shared.core.log_stall_max_s)
        return Worker(parts, self._desk, limits, self.shared.election.clock_skew_max_s)

    @asynccontextmanager
    async def _desk(self) -> AsyncIterator[MemoryDesk]:
        shared = self.shared
        yield MemoryDesk(shared.database, lambda: str(shared.lock_server.identity), shared.clock.wall_us, _travel)

    def _store(self, session: MemoryLockSession) -> ParticipantStore:
        if self.ledger is None:
            return HeldStore(session, self.shared.database, self.shared.publishing)
        return EmbeddedStore(self.ledger, self.shared.topic.topic_id, self.shared.database.formats)

    def _session(self) -> MemoryLockSession:
        shared = self.shared
        return MemoryLockSession(shared.lock_server, name=self.name, settings=shared.election, clock=shared.clock)


async def until_led(replicas: Sequence[Replica]) -> Replica:
    """Whichever of them is the first to lead."""
    async with asyncio.timeout(LIFE_MAX_S):
        while True:
            for replica in replicas:
                if replica.participant.standing().active:
                    return replica
            await asyncio.sleep(0.01)


class HeldStore(MemoryStore):
    """A store whose publications wait while another session has locked the table, as during a long change of it."""

    def __init__(
        self, session: MemoryLockSession, database: MemoryDatabase, publishing: asyncio.Event | None = None
    ) -> None:
        super().__init__(session, database)
        self._publishing = publishing

    async def publish(self, completions: Sequence[Completion], position: Position) -> int:
        if self._publishing is not None:
            await self._publishing.wait()
        return await super().publish(completions, position)


async def _travel() -> None:
    await asyncio.sleep(0.001)


class World(AsyncExitStack):
    """Replicas R1, R2, … over one shared state; all stopped at the end."""

    def __init__(self, **shared: object) -> None:
        super().__init__()
        self.shared = Shared(**shared)  # type: ignore[arg-type]
        self._running: dict[str, Replica] = {}
        self._telling: asyncio.Task[None] | None = None

    async def replica(
        self,
        number: int = 1,
        index: MemoryIndex | None = None,
        trace: Trace = UNTRACED,
        folder: Path | None = None,
        delivery: Callable[[], Delivery] = Delivery,
        disk: SeenDisk | None = None,
    ) -> Replica:
        """A started replica; the first one becomes active."""
        replica = Replica(self.shared, f"R{number}", index, trace, delivery, folder, disk)
        replica.start()
        if self.shared.peers:
            self._running[replica.name] = replica
            if self._telling is None:
                self._telling = asyncio.create_task(self._tell(), name="what replicas tell one another")
                self.push_async_callback(self._end_telling)
        self.push_async_callback(self._stop, replica)
        return replica

    async def lose(self, replica: Replica) -> None:
        """End its process; nobody hears of it any more."""
        del self._running[replica.name]
        await self._stop(replica)

    async def _tell(self) -> None:
        """What each replica's health document tells its peers."""
        while True:
            for replica in self._running.values():
                for peer in self.shared.peers:
                    known = self._running.get(peer)
                    replica.participant.marks.note_told(peer, None if known is None else known.participant.marks.told())
            await asyncio.sleep(TELL_EVERY_S)

    async def _end_telling(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)

    @staticmethod
    async def _stop(replica: Replica) -> None:
        with suppress(Exception):
            await replica.stop()
