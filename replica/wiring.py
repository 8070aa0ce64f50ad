"""The composition root of a replica's core process: builds the parts, starts them, and stops them in reverse order."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import secrets
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import structlog
import uvloop

from ha.clock import Clock, SystemClock
from ha.election.driver import Election
from ha.errors import HaError
from ha.health import HealthListener, LoopPulse, Probes
from ha.settings import ElectionSettings
from replica.active.signer import Signer
from replica.database import Database, Session
from replica.failure import exit_code, told_of
from replica.following.salvaged import read_salvages
from replica.following.scrub import BOOKMARK, Scrubber
from replica.health import HealthDocument
from replica.index.quarantine import open_or_start_anew, quarantined, set_aside
from replica.index.rocks import RocksIndex
from replica.link.counts import metric_families
from replica.link.settings import LinkSettings, TracingSettings
from replica.link.traces import open_traces
from replica.link.unix_server import LinkServer
from replica.log.interface import RequestLog
from replica.log.open import open_log
from replica.log.settings import LogSettings
from replica.notary.errors import IndexDamaged, InvariantBroken, NotaryError, StoreUnavailable
from replica.notary.exit_codes import EXIT_OK
from replica.notary.formats import known
from replica.notary.keys import NotaryKey, known_keys
from replica.operators.admin import AdminListener, Steering
from replica.operators.front_ends import FrontEnds
from replica.operators.metrics import make_metrics
from replica.operators.neighbourhood import Neighbourhood
from replica.operators.status_page import make_status_page
from replica.operators.systemd import ServiceManager
from replica.participant import Participant
from replica.running import run_to_the_end
from replica.settings import AdminSettings, CoreSettings
from replica.store.bulletin import Bulletin
from replica.telemetry.core_spans import UNTRACED, CoreTrace, Trace
from replica.telemetry.log_lines import set_up_logging

log = structlog.get_logger()

PRIVATE_UMASK = 0o077  # whatever a replica creates, folders of the index among it, is its account's alone
_GC_THRESHOLD = (50_000, 20, 50)  # a batch makes thousands of objects that live for milliseconds, and no cycles
_ASK_AROUND_MAX_S = 4.0  # beyond the lease, to ask the database who else is there
_FAILED_MARK = "failed"  # left in the replica's folder while it runs: a start that finds it is in hold-down


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaSettings:
    """What one replica's core is built from."""

    name: str
    version: str
    folder: Path
    notary_signer: Callable[[], Signer]  # opens the notary's key
    notary_keys_file: Path | None
    database: Database
    health_host: str
    health_port: int
    api_workers: int
    front_end_argv: tuple[str, ...]
    front_end_drain_max_s: float
    front_end_document: Mapping[str, object]  # `api` settings, as the front end takes them
    log: LogSettings
    election: ElectionSettings
    core: CoreSettings
    link: LinkSettings
    admin: AdminSettings
    tracing: TracingSettings
    admin_port: int | None
    peers: tuple[str, ...]  # names of all replicas, this one's as well
    health_urls: Mapping[str, str]  # where each of them tells its health, for the status page


def run_replica(settings: ReplicaSettings) -> int:
    """Run one replica until SIGTERM or SIGINT; returns the exit code: 0, 1 (start again), 2 (a person is needed)."""
    set_up_logging(replica=settings.name)
    os.umask(PRIVATE_UMASK)
    gc.freeze()  # what is loaded stays
    gc.set_threshold(*_GC_THRESHOLD)
    try:
        signer = settings.notary_signer()
        keys = known_keys(settings.notary_keys_file, signer.public_key)
        uvloop.run(_Replica(settings, signer, keys).run())
    except (HaError, NotaryError, InvariantBroken) as error:
        log.critical("replica_failed", **told_of(error))
        return exit_code(error)
    return EXIT_OK


class _Replica:
    """The parts of one core process, wired."""

    def __init__(self, settings: ReplicaSettings, signer: Signer, keys: Sequence[NotaryKey]) -> None:
        self._settings = settings
        self._signer = signer
        self._keys = keys
        self._clock: Clock = SystemClock()
        self._generation = secrets.token_hex(16)
        self._index_folder = settings.folder / "index"
        self._salvages = read_salvages(settings.folder)

    async def run(self) -> None:
        """Run until a signal or a failure. Raises what made it fail; what is started next then has another index, if
        damage to this one did: it may be met again long after the start."""
        await self._check_alone()
        try:
            await self._run()
        except IndexDamaged as error:
            set_aside(self._index_folder, self._clock.wall_us(), error)
            raise

    async def _run(self) -> None:
        """Start everything, wait for a signal or a failure, stop in reverse order."""
        settings = self._settings
        settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        settings.folder.chmod(0o700)  # one that somebody else made is closed as well
        mark = settings.folder / _FAILED_MARK
        after_failure = mark.exists()
        mark.touch()
        async with contextlib.AsyncExitStack() as stack:
            index = open_or_start_anew(self._index_folder, self._clock.wall_us())
            stack.callback(index.close)
            request_log = open_log(settings.log)
            stack.push_async_callback(request_log.close)
            participant: Participant[Session] = Participant(
                name=settings.name,
                request_log=request_log,
                index=index,
                make_store=settings.database.make_store,
                signer=self._signer,
                clock=self._clock,
                settings=settings.core,
                trace=self._open_trace(stack),
                salvages=self._salvages,
            )
            election: Election[Session] = Election(
                self._lock_session,
                participant,
                clock=self._clock,
                settings=settings.election,
                random=random.SystemRandom(),
                after_failure=after_failure,
            )
            link = LinkServer(settings.folder / "link.sock", self._generation, participant, settings.link)
            participant.is_leading, participant.give_up = election.is_leading, election.step_down
            participant.announce = link.announce
            await link.start()
            stack.push_async_callback(link.stop)
            bulletin = Bulletin(settings.database.board, settings.name)
            participant.is_barred, participant.tell_later = bulletin.is_barred, bulletin.tell
            _beside(stack, bulletin.run(), "bulletin")
            neighbourhood = Neighbourhood(lambda: settings.database.neighbours(settings.name), self._clock)
            _beside(stack, neighbourhood.run(), "neighbourhood")
            pulse = LoopPulse(self._clock)
            pulse.start()
            stack.callback(pulse.stop)
            scrubber = self._start_scrub(stack, participant, request_log, index)
            probes = self._probes(
                participant=participant,
                election=election,
                link=link,
                pulse=pulse,
                bulletin=bulletin,
                scrubber=scrubber,
            )
            metrics = make_metrics(
                participant,
                election,
                settings.version,
                lambda: metric_families(link.api_counts()),
                index_sizes=index.sizes,
                quarantined=lambda: len(quarantined(self._index_folder)),
                folder=settings.folder,
                is_paused=lambda: bulletin.pause is not None,
                scrubber=scrubber,
                round_trips=lambda: request_log.answer_times,
                peers=settings.peers,
                neighbours=lambda: neighbourhood.found,
            )
            health = HealthListener(probes, host=settings.health_host, port=settings.health_port, metrics=metrics)
            await health.start()
            stack.push_async_callback(health.stop)
            if settings.admin_port is not None:
                page = make_status_page(
                    participant,
                    settings.database,
                    version=settings.version,
                    health_urls=settings.health_urls,
                    clock=self._clock,
                    detail=probes.detail,
                    api_counts=link.api_counts,
                )
                _beside(stack, page.run(), "sample")
                steering = Steering(
                    settings.name, settings.peers, election, lambda: bulletin.pause is not None, participant
                )
                admin = AdminListener(steering, probes.detail, page.routes(), settings.admin, settings.admin_port)
                await admin.start()
                stack.push_async_callback(admin.stop)
            participant.start()
            stack.push_async_callback(participant.stop)
            front_ends = FrontEnds(
                settings.front_end_argv,
                settings.api_workers,
                self._front_end_document,
                self._clock,
                drain_max_s=settings.front_end_drain_max_s,
            )
            manager = ServiceManager()
            manager.start(
                lambda: f"{election.role}, epoch {participant.epoch}, applied {participant.follower.applied_offset}"
            )
            stack.callback(manager.stop)
            log.info("replica_started", version=settings.version, epoch=participant.epoch, hold_down=after_failure)
            await self._until_stopped(participant, election, front_ends, bulletin)
        mark.unlink(missing_ok=True)
        log.info("replica_stopped")

    async def _check_alone(self) -> None:
        """Two replicas of one name, or two ledgers that could be ours, are found before they meet at the lock."""
        settings = self._settings
        try:
            async with asyncio.timeout(settings.election.lease_s + _ASK_AROUND_MAX_S):
                await settings.database.check_alone(settings.name, settings.election)
        except (StoreUnavailable, TimeoutError) as error:  # the doctor finds them, too
            log.warning("neighbours_unknown", detail=str(error) or "no answer in time")

    async def _until_stopped(
        self,
        participant: Participant[Session],
        election: Election[Session],
        front_ends: FrontEnds,
        bulletin: Bulletin,
    ) -> None:
        """Wait until the election ends, by a signal or by failing, or something else fails."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, election.stop)
        loop.add_signal_handler(signal.SIGHUP, front_ends.reload)
        try:
            await run_to_the_end(
                participant, election, front_ends.run(), stop_max_s=2 * self._settings.election.drain_max_s
            )
        finally:
            await bulletin.flush()

    def _start_scrub(
        self,
        stack: contextlib.AsyncExitStack,
        participant: Participant[Session],
        request_log: RequestLog,
        index: RocksIndex,
    ) -> Scrubber:
        """Begin to compare the index with the log; it waits until the follower has come to the log."""
        core = self._settings.core

        def is_busy() -> bool:
            return (
                participant.activation is not None
                and participant.activation.budget.submissions >= core.admit_linger_from
            )

        scrubber = Scrubber(
            request_log,
            index,
            participant.follower,
            self._clock,
            core,
            bookmark=self._index_folder / BOOKMARK,
            entry_count=lambda: index.entry_count,
            is_busy=is_busy,
            salvages=self._salvages,
        )
        _beside(stack, participant.guarded(scrubber.run()), "scrub")
        return scrubber

    def _open_trace(self, stack: contextlib.AsyncExitStack) -> Trace:
        settings = self._settings
        traces = open_traces(settings.tracing, name="replica.core", instance=settings.name, version=settings.version)
        if traces is None:
            return UNTRACED
        stack.push_async_callback(traces.close)
        return CoreTrace(traces, self._clock.wall_us)

    def _lock_session(self) -> Session:
        settings = self._settings
        return settings.database.lock_session(name=settings.name, settings=settings.election, clock=self._clock)

    def _front_end_document(self, number: int) -> Mapping[str, object]:
        settings = self._settings
        return {
            "name": f"{settings.name}/api-{number + 1}",
            "replica": settings.name,
            "core_pid": os.getpid(),
            "link_path": str(settings.folder / "link.sock"),
            "generation": self._generation,
            "link": settings.link.model_dump(mode="json"),
            "api": settings.front_end_document,
            "tracing": settings.tracing.model_dump(mode="json"),
            "database": settings.database.reader_address,
            "notary_key": self._signer.public_key.hex(),
            "notary_keys": msgspec.to_builtins(self._keys),
            "version": settings.version,
        }

    def _probes(
        self,
        *,
        participant: Participant[Session],
        election: Election[Session],
        link: LinkServer,
        pulse: LoopPulse,
        bulletin: Bulletin,
        scrubber: Scrubber,
    ) -> Probes:
        settings = self._settings

        def is_active() -> bool:
            return participant.standing().active and bool(link.front_ends)

        def is_ready() -> bool:
            readiness = participant.readiness()
            warm = readiness.reaches_log and readiness.lag_records < settings.election.catch_up_records_per_s
            return is_active() or (election.is_candidate() and warm and bool(link.front_ends))

        def detail() -> Mapping[str, object]:
            follower, activation = participant.follower, participant.activation
            position = follower.position
            return HealthDocument(
                replica=settings.name,
                version=settings.version,
                active=is_active(),
                ready=is_ready(),
                **election.status(),
                failover_paused=bulletin.pause is not None,
                epoch=participant.epoch,
                applied_offset=follower.applied_offset,
                lag_records=follower.lag_records,
                granted_by="" if position is None or position.barrier is None else position.barrier.database,
                reaches_log=follower.reaches_log(),
                log_hazards=follower.hazards,
                front_ends=len(link.front_ends),
                scrub=scrubber.progress(),
                index_digests={str(at): digest.hex() for at, digest in scrubber.digests().items()},
                ledger_end=None if activation is None else activation.publisher.ledger_end,
                in_flight=0 if activation is None else activation.budget.submissions,
                formats_known=known(),
                activation_steps_s={} if activation is None else activation.steps_s,
            ).as_json_object()

        return Probes(
            is_live=lambda: pulse.age_s() < settings.election.lease_s,
            is_ready=is_ready,
            is_active=is_active,
            detail=detail,
        )


def _beside(stack: contextlib.AsyncExitStack, work: Coroutine[Any, Any, None], name: str) -> None:
    """Do some work from now until the stack ends."""
    stack.push_async_callback(_end, asyncio.create_task(work, name=name))


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def front_end_argv() -> tuple[str, ...]:
    """How a front end is started; named here as text because the core never imports it."""
    return (sys.executable, "-m", "ledger_api.server")
