"""The composition root of a replica's core: builds and starts the parts, and stops them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec

from ha.clock import Clock
from ha.election.driver import Election
from ha.health import HealthListener, LoopPulse, Probes
from ha.lock.lease import LeaseSession
from ha.settings import ElectionSettings
from ha.site.guard import SiteGuard
from ha.site.settings import SiteSettings
from replica.active.derived_ledger import DerivedLedger
from replica.active.fitness import Limits
from replica.active.lease_log import FollowedLease
from replica.active.log_desk import LogDesk
from replica.active.parts import Parts
from replica.active.serving import HolderServes, MakeServing
from replica.active.shared_bound import SharedBound
from replica.active.signer import Signer
from replica.active.worker import Worker
from replica.database import Database, EmbeddedLedgers, Session
from replica.following.filter_filling import fill_filter
from replica.following.scrub import BOOKMARK, Scrubber
from replica.index.filtered import FilteredIndex
from replica.index.quarantine import open_or_start_anew, quarantined
from replica.link.interface import PeerSeen
from replica.link.settings import LINK_SOCKET, LinkSettings
from replica.link.unix_server import LinkServer
from replica.log.beginning import genesis_of
from replica.log.interface import ConsensusLog, RequestLog
from replica.log.open import open_log, open_log_admin
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.settings import LogSettings
from replica.marks.keeper import MarkKeeper
from replica.marks.lead import NO_LEAD, Lead
from replica.marks.seen_file import SEEN_NAME, DiskSeenFile
from replica.notary.errors import InvariantBroken
from replica.notary.formats import Formats
from replica.notary.keys import NotaryKey
from replica.notary.own_process import module_argv
from replica.notary.position import Position
from replica.notary.salvage import Salvages
from replica.notary.tasks import cancelled
from replica.notary.web_hosts import WebHosts
from replica.notary.words import WordsLog
from replica.operators.admin import AdminListener, Steering
from replica.operators.consent import TrailConsent
from replica.operators.front_ends import FrontEnds
from replica.operators.metrics import (
    ApiMetrics,
    BrokersMetrics,
    CoreMetrics,
    DiskMetrics,
    IndexMetrics,
    MarksMetrics,
    NeighboursMetrics,
    OwnLedgerMetrics,
    PauseMetrics,
    ScrubMetrics,
    SiteMetrics,
    TrailMetrics,
    make_metrics,
)
from replica.operators.neighbourhood import Neighbourhood
from replica.operators.party_book import PartyBook
from replica.operators.peers import LOOK_EVERY_S, LOOK_EXPOSED_S, PeerWatch
from replica.operators.probes import make_probes
from replica.operators.status_page import make_status_page
from replica.operators.systemd import ServiceManager
from replica.participant import Covering, Leading, Ledger, Participant, Resources
from replica.settings import AdminSettings, CoreSettings, OperatorsSettings
from replica.store.bulletin import Bulletin
from replica.store.desk import Desk
from replica.store.interface import ParticipantStore
from replica.store.sqlite.store import EmbeddedStore
from replica.store.trail import Signatories
from replica.store.trail_watch import CURSOR, TrailWatch
from replica.telemetry.core_spans import UNTRACED, CoreTrace, Trace
from replica.telemetry.counts import metric_families
from replica.telemetry.settings import TracingSettings
from replica.telemetry.traces import open_traces

SIGNS_PER_CLAIM = 8  # so many times over could a sign of life wait for the pipeline before the claim is over
HAPROXY_ASKS_FOR = "notary"  # the Host header of its checks (haproxy/template.cfg.j2)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """Everything that one replica's core is built from."""

    name: str
    version: str
    folder: Path
    notary_signer: Callable[[], Signer]  # opens the notary's key
    notary_keys_file: Path | None
    database: Database | EmbeddedLedgers
    ledgers_now: Callable[[], Database | EmbeddedLedgers]  # the same with the password of now; raises ConfigError
    health_host: str
    health_port: int
    api_workers: int
    front_end_argv: tuple[str, ...]
    front_end_drain_max_s: float
    front_end_document: Mapping[str, object]  # `api` settings, as the front end takes them
    proxy_document: Mapping[str, object] | None = None  # where HAProxy connects, likewise
    log: LogSettings
    election: ElectionSettings
    core: CoreSettings
    link: LinkSettings
    admin: AdminSettings
    operators: OperatorsSettings
    signatories: Callable[[], Signatories]  # whose signatures count in the operators' trail
    tracing: TracingSettings
    admin_socket: Path
    peers: tuple[str, ...]  # names of all replicas, this one's as well
    health_urls: Mapping[str, str]  # where each of them shows its health, for the status page
    barred: frozenset[str] = frozenset()  # those that may not hold the lock
    serving: Literal["one", "all"] = "one"
    cluster: str = "notary"  # name of the whole, for people
    endpoint: str = ""  # URL that applications are given
    host_names: tuple[str, ...] = ()  # by which browsers may ask for API and health
    listing: Mapping[str, object]  # what GET /v1/endpoints lists, as the front end takes it
    archive: Path | None = None  # its folder, if it is one on this machine
    site: SiteSettings | None = None  # where another site may take over
    site_witness: Callable[[], str] = str  # its witness' connection string with the password


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The facts that a process finds before it builds anything."""

    signer: Signer
    keys: Sequence[NotaryKey]
    salvages: Salvages
    generation: str  # a front end of another core process is not let in
    archived: Position | None  # the mark in the archive's manifest
    after_failure: bool  # the process before did not end in order


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """The parts of one core process."""

    clock: Clock
    index: FilteredIndex
    request_log: RequestLog
    bulletin: Bulletin
    trail: TrailWatch
    neighbourhood: Neighbourhood
    election: Election[Session]
    participant: Participant[Session]
    link: LinkServer
    pulse: LoopPulse
    scrubber: Scrubber
    front_ends: FrontEnds
    shared_bound: SharedBound | None  # where each replica has a ledger of its own
    site: SiteGuard | None  # where another site may take over


def index_folder(settings: ReplicaSettings) -> Path:
    """Where the replica's index lies."""
    return settings.folder / "index"


def build(stack: contextlib.AsyncExitStack, settings: ReplicaSettings, start: Start, clock: Clock) -> Core:
    """Open index and log and build all parts over them, from the bottom to the top. Nothing runs yet."""
    index = open_or_start_anew(index_folder(settings), clock.wall_us())
    stack.callback(index.close)
    request_log = open_log(settings.log)
    stack.push_async_callback(request_log.close)
    marks = MarkKeeper(
        settings.name,
        DiskSeenFile(settings.folder / SEEN_NAME),
        clock,
        tuple(_peers_of(settings)),
        start.archived,
        database=not isinstance(settings.database, EmbeddedLedgers),
    )
    bulletin = Bulletin(settings.database.board, settings.name, marks)
    ledger = _own_ledger(settings, start, request_log, index, clock)

    def lease_log(ledgers: EmbeddedLedgers) -> FollowedLease:
        def raised() -> Awaitable[Formats]:
            return ledgers.board_over(request_log).formats()

        return FollowedLease(request_log, participant.follower, os.urandom, clock.wall_us, raised)

    election = _election(settings, start, clock, bulletin, lease_log)
    site = _site_guard(settings, clock)
    participant: Participant[Session] = Participant(
        Resources(
            name=settings.name,
            request_log=request_log,
            require=genesis_of,
            index=index,
            salvages=start.salvages,
            signer=start.signer,
            clock=clock,
            random_bytes=os.urandom,
            settings=core_settings(settings.core, settings.election),
            trace=_open_trace(stack, settings, clock),
        ),
        Covering(marks, Lead(settings.core.exposed_max_records) if _is_exposed(settings) else NO_LEAD),
        Ledger(lambda session: _store(settings.database, session, participant, ledger, bulletin), ledger),
        Leading(
            election,
            bulletin,
            may_lead=settings.name not in settings.barred,
            in_term=_always if site is None else site.in_term,
        ),
        _make_serving(settings, ledger, request_log, clock),
    )
    link = LinkServer(settings.folder / LINK_SOCKET, start.generation, participant, settings.link)
    participant.on_standing_changed(link.announce)
    return Core(
        clock=clock,
        index=index,
        request_log=request_log,
        bulletin=bulletin,
        trail=TrailWatch(
            settings.database.board,
            settings.name,
            settings.folder / CURSOR,
            look_every_s=settings.operators.trail_look_s,
        ),
        neighbourhood=Neighbourhood(lambda: settings.database.neighbours(settings.name), clock),
        election=election,
        participant=participant,
        link=link,
        pulse=LoopPulse(clock),
        scrubber=_scrubber(settings, start, participant=participant, request_log=request_log, index=index, clock=clock),
        front_ends=_front_ends(settings, start, clock, link),
        shared_bound=None
        if ledger is None or not isinstance(request_log, WordsLog)
        else SharedBound(request_log, ledger, participant.prune_own, clock),
        site=site,
    )


async def start(stack: contextlib.AsyncExitStack, settings: ReplicaSettings, core: Core) -> None:
    """Start everything but election and front ends; the stack stops it in reverse order."""
    await core.link.start()
    stack.push_async_callback(core.link.stop)
    _beside(stack, core.bulletin.run(core.participant.note_pause), "bulletin")
    _beside(stack, core.trail.run(), "operators' trail")
    _beside(stack, core.neighbourhood.run(), "neighbourhood")
    watch = PeerWatch(
        _peers_of(settings),
        partial(_announce_peers, core),
        core.participant.marks.note_told,
        core.clock,
        LOOK_EXPOSED_S if _is_exposed(settings) else LOOK_EVERY_S,
    )
    _beside(stack, watch.run(), "peers")
    if core.site is not None:
        _beside(stack, core.site.run(core.participant.note_site), "site")
    if core.shared_bound is not None:
        _beside(stack, core.shared_bound.run(), "bound of pruning")
    core.pulse.start()
    stack.callback(core.pulse.stop)
    _beside(stack, core.participant.guarded(core.scrubber.run()), "scrub")
    _beside(stack, core.participant.guarded(fill_filter(core.index, core.clock)), "filter of the index")
    probes = make_probes(
        name=settings.name,
        version=settings.version,
        election_settings=settings.election,
        participant=core.participant,
        election=core.election,
        link=core.link,
        pulse=core.pulse,
        bulletin=core.bulletin,
        scrubber=core.scrubber,
        site=core.site,
        wall_us=core.clock.wall_us,
    )
    await _serve_health(stack, settings, core, probes)
    await _serve_operators(stack, settings, core, probes)
    core.participant.start()
    stack.push_async_callback(core.participant.stop)
    manager = ServiceManager()
    manager.start(lambda: _status_line(core))
    stack.callback(manager.stop)


def _is_exposed(settings: ReplicaSettings) -> bool:
    """Whether a power cut can leave the log shorter than what was answered. One in a single process goes whole."""
    return not (settings.log.survives_power_loss or settings.log.one_machine_only)


def _peers_of(settings: ReplicaSettings) -> Mapping[str, str]:
    """Where the other replicas show their health, by name."""
    return {name: url for name, url in settings.health_urls.items() if name != settings.name}


def _site_guard(settings: ReplicaSettings, clock: Clock) -> SiteGuard | None:
    """What renews the site's term; None where no other site may take over."""
    site = settings.site
    if site is None:
        return None
    from ha.site.witness import PostgresWitness  # a participant without a database loads no client of one

    async def log_id() -> str:
        admin = open_log_admin(settings.log)
        try:
            return await admin.topic_id()
        finally:
            await admin.close()

    witness = PostgresWitness(settings.site_witness())
    return SiteGuard(witness, site.name, log_id, clock=clock, lease_s=site.lease_s)


def _always() -> bool:
    return True


def _own_ledger(
    settings: ReplicaSettings, start: Start, request_log: RequestLog, index: FilteredIndex, clock: Clock
) -> DerivedLedger | None:
    """The ledger that this replica derives; None where it shares a database with the others."""
    if not isinstance(settings.database, EmbeddedLedgers):
        return None
    folder = settings.database.folder
    return DerivedLedger(folder, request_log, index, clock=clock, settings=settings.core, salvages=start.salvages)


def _make_serving(
    settings: ReplicaSettings, ledger: DerivedLedger | None, request_log: RequestLog, clock: Clock
) -> MakeServing:
    """Who takes submissions: the holder of the lock or lease alone, or every replica."""
    if settings.serving == "one":
        return HolderServes
    database, election = settings.database, settings.election

    def open_desk(parts: Parts) -> Callable[[], AbstractAsyncContextManager[Desk]]:
        if not isinstance(database, EmbeddedLedgers):
            return lambda: database.desk(f"{settings.name}/desk")
        if ledger is None or not isinstance(request_log, WordsLog):
            raise InvariantBroken("workers draw their numbers from a database or from words in the log: there are none")
        desk = LogDesk(ledger, request_log, lambda: _log_id(parts), clock, os.urandom)
        return lambda: contextlib.nullcontext(desk)

    limits = Limits(round(election.catch_up_records_per_s), settings.core.log_stall_max_s)
    return lambda parts, *_: Worker(parts, open_desk(parts), limits, election.clock_skew_max_s)


def _log_id(parts: Parts) -> str:
    """The log that a worker writes to, so it has read of it."""
    position = parts.follower.position
    if position is None:
        raise InvariantBroken("a worker draws numbers for a log that was not read")
    return position.topic_id


def _store(
    database: Database | EmbeddedLedgers,
    session: Session,
    participant: Participant[Session],
    ledger: DerivedLedger | None,
    bulletin: Bulletin,
) -> ParticipantStore:
    """The store of an activation. The lock was granted, so the log was reached."""
    if not isinstance(database, EmbeddedLedgers):
        return database.make_store(session)
    position = participant.follower.position
    if ledger is None or position is None:
        raise InvariantBroken("a lease was granted by a log that was not read")
    return EmbeddedStore(ledger, position.topic_id, Formats(), bulletin.note_end)


def _election(
    settings: ReplicaSettings,
    start: Start,
    clock: Clock,
    bulletin: Bulletin,
    lease_log: Callable[[EmbeddedLedgers], FollowedLease],
) -> Election[Session]:
    others = set(settings.peers) - settings.barred - {settings.name}  # which may claim a lease that is given back

    def gives_back() -> bool:
        return settings.serving == "one" or (bulletin.pause is None and bool(others))

    def lock_session() -> Session:
        database = settings.database
        if not isinstance(database, EmbeddedLedgers):
            return database.lock_session(name=settings.name, settings=settings.election, clock=clock)
        return LeaseSession(
            lease_log(database), name=settings.name, settings=settings.election, clock=clock, gives_back=gives_back
        )

    return Election(
        lock_session,
        clock=clock,
        settings=settings.election,
        random=random.SystemRandom(),
        after_failure=start.after_failure,
    )


def core_settings(core: CoreSettings, election: ElectionSettings) -> CoreSettings:
    """What the core works with: under a lease, signs of life must not wait long behind submissions."""
    if election.kind != "lease" or core.pipeline_max_s:
        return core
    return core.model_copy(update={"pipeline_max_s": election.confirmed_age_max_s / SIGNS_PER_CLAIM})


def _open_trace(stack: contextlib.AsyncExitStack, settings: ReplicaSettings, clock: Clock) -> Trace:
    traces = open_traces(settings.tracing, name="replica.core", instance=settings.name, version=settings.version)
    if traces is None:
        return UNTRACED
    stack.push_async_callback(traces.close)
    return CoreTrace(traces, clock.wall_us)


def _scrubber(
    settings: ReplicaSettings,
    start: Start,
    *,
    participant: Participant[Session],
    request_log: RequestLog,
    index: FilteredIndex,
    clock: Clock,
) -> Scrubber:
    """Compares the index with the log; it waits until the follower has come to the log."""

    def is_busy() -> bool:
        return participant.in_flight >= settings.core.admit_linger_from

    return Scrubber(
        request_log,
        index,
        participant.follower,
        clock,
        settings.core,
        bookmark=index_folder(settings) / BOOKMARK,
        is_busy=is_busy,
        salvages=start.salvages,
        distrust_filter=index.distrust_filter,
    )


def _front_ends(settings: ReplicaSettings, start: Start, clock: Clock, link: LinkServer) -> FrontEnds:
    def document(number: int) -> Mapping[str, object]:
        return {
            "name": f"{settings.name}/api-{number + 1}",
            "replica": settings.name,
            "core_pid": os.getpid(),
            "link_path": str(settings.folder / LINK_SOCKET),
            "generation": start.generation,
            "link": settings.link.model_dump(mode="json"),
            "api": settings.front_end_document,
            "proxy": settings.proxy_document,
            "tracing": settings.tracing.model_dump(mode="json"),
            "database": settings.database.reader_address,
            "notary_key": start.signer.public_key.hex(),
            "notary_keys": msgspec.to_builtins(start.keys),
            "version": settings.version,
            "listing": settings.listing,
            "hosts": settings.host_names,
            "log_nodes": isinstance(settings.log, RaftLogSettings),
        }

    return FrontEnds(
        settings.front_end_argv,
        settings.api_workers,
        document,
        clock,
        link,
        drain_max_s=settings.front_end_drain_max_s,
    )


async def _serve_health(
    stack: contextlib.AsyncExitStack, settings: ReplicaSettings, core: Core, probes: Probes
) -> None:
    participant = core.participant
    metrics = make_metrics(
        IndexMetrics(core.index.sizes, lambda: len(quarantined(index_folder(settings)))),
        ScrubMetrics(core.scrubber),
        TrailMetrics(lambda: bool(core.trail.broken), lambda: core.trail.entries),
        MarksMetrics(participant),
        SiteMetrics(lambda: None if core.site is None else core.site.left_s()),
        DiskMetrics(settings.folder),
        NeighboursMetrics(lambda: core.neighbourhood.found),
        OwnLedgerMetrics(participant.own_ledger),
        BrokersMetrics(lambda: core.request_log.answer_times),
        PauseMetrics(lambda: core.bulletin.is_failover_paused, lambda: participant.is_paused),
        CoreMetrics(participant, core.election, settings.version, settings.peers),
        ApiMetrics(lambda: metric_families(core.link.api_counts())),
    )
    hosts = WebHosts((*settings.host_names, HAPROXY_ASKS_FOR), addresses=True)
    health = HealthListener(
        probes, host=settings.health_host, port=settings.health_port, metrics=metrics, takes_host=hosts.takes_host
    )
    await health.start()
    stack.push_async_callback(health.stop)


async def _serve_operators(
    stack: contextlib.AsyncExitStack, settings: ReplicaSettings, core: Core, probes: Probes
) -> None:
    page = make_status_page(
        core.participant,
        settings.database,
        version=settings.version,
        cluster=settings.cluster,
        endpoint=settings.endpoint,
        health_urls=settings.health_urls,
        clock=core.clock,
        detail=probes.detail,
        api_counts=core.link.api_counts,
    )
    _beside(stack, page.run(), "sample")
    consent = TrailConsent(
        lambda: settings.ledgers_now().board(f"{settings.name}/consent"), settings.signatories, settings.operators
    )
    steering = Steering(
        settings.name,
        settings.peers,
        core.election,
        lambda: core.bulletin.is_failover_paused,
        core.participant,
        registrar=core.participant,
        book=PartyBook(core.index, core.request_log),
        consent=consent,
        barred=settings.barred,
    )
    log = core.request_log if isinstance(core.request_log, ConsensusLog) else None
    path, group = settings.admin_socket, settings.admin.group
    admin = AdminListener(steering, probes.detail, page.routes(), path, group, consensus=log)
    await admin.start()
    stack.push_async_callback(admin.stop)


def _announce_peers(core: Core, others: Sequence[PeerSeen]) -> None:
    core.link.announce_peers(others)
    core.participant.serving.note_peers(others)


def _status_line(core: Core) -> str:
    participant = core.participant
    return f"{core.election.role}, epoch {participant.epoch}, applied {participant.follower.applied_offset}"


def _beside(stack: contextlib.AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> None:
    """Run some work from now until the stack ends."""
    stack.push_async_callback(cancelled, asyncio.create_task(work, name=name))


def front_end_argv() -> tuple[str, ...]:
    """How a front end is started; named here as text because the core never imports it."""
    return tuple(module_argv("ledger_api.server"))
