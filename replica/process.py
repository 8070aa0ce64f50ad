"""One replica as a process: the checks before anything is built, signals, and its exit code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import secrets
import signal

import structlog
import uvloop

from ha.clock import Clock, SystemClock
from ha.errors import HaError
from replica.failure import error_document, exit_code
from replica.following.salvaged import read_salvages
from replica.index.quarantine import set_aside
from replica.marks.archived import archived_mark
from replica.notary.errors import IndexDamaged, InvariantBroken, NotaryError, StoreUnavailable
from replica.notary.exit_codes import EXIT_OK
from replica.notary.keys import known_keys
from replica.notary.own_process import raise_open_files
from replica.running import run_to_the_end
from replica.telemetry.log_lines import set_up_logging
from replica.wiring import Core, ReplicaSettings, Start, build, index_folder, start

log = structlog.get_logger()

PRIVATE_UMASK = 0o077  # whatever a replica creates, folders of the index among it, is its account's alone
_GC_THRESHOLD = (50_000, 20, 50)  # a batch makes thousands of objects that live for milliseconds, and no cycles
_ASK_AROUND_MAX_S = 4.0  # on top of the lease, to ask the database which other replicas are there
_FAILED_MARK = "failed"  # left in the replica's folder while it runs: a start that finds it is in hold-down


def run_replica(settings: ReplicaSettings) -> int:
    """Run one replica until SIGTERM or SIGINT; returns the exit code: 0, 1 (start again), 2 (a person is needed)."""
    set_up_logging(replica=settings.name)
    os.umask(PRIVATE_UMASK)
    raise_open_files()  # front ends inherit it
    gc.freeze()  # what is loaded stays
    gc.set_threshold(*_GC_THRESHOLD)
    try:
        uvloop.run(_run(settings, _look(settings), SystemClock()))
    except (HaError, NotaryError, InvariantBroken) as error:
        log.critical("replica_failed", **error_document(error))
        return exit_code(error)
    return EXIT_OK


def _look(settings: ReplicaSettings) -> Start:
    """Open the notary's key and read what was imported, before anything is written."""
    signer = settings.notary_signer()
    return Start(
        signer=signer,
        keys=known_keys(settings.notary_keys_file, signer.public_key),
        salvages=read_salvages(settings.folder),
        archived=archived_mark(settings.archive),
        generation=secrets.token_hex(16),
        after_failure=(settings.folder / _FAILED_MARK).exists(),
    )


async def _run(settings: ReplicaSettings, found: Start, clock: Clock) -> None:
    """Run until a signal or a failure. Raises the failure. After damage to the index the next start has another index:
    the damage may show long after the start."""
    await _check_alone(settings)
    try:
        await _start_and_serve(settings, found, clock)
    except IndexDamaged as error:
        set_aside(index_folder(settings), clock.wall_us(), error)
        raise


async def _start_and_serve(settings: ReplicaSettings, found: Start, clock: Clock) -> None:
    """Start everything, wait for a signal or a failure, stop in reverse order."""
    settings.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.folder.chmod(0o700)  # a folder that existed before is closed as well
    mark = settings.folder / _FAILED_MARK
    mark.touch()
    async with contextlib.AsyncExitStack() as stack:
        core = build(stack, settings, found, clock)
        await start(stack, settings, core)
        hold_down, epoch = found.after_failure, core.participant.epoch
        log.info("replica_started", version=settings.version, epoch=epoch, hold_down=hold_down)
        await _until_stopped(core, stop_max_s=2 * settings.election.drain_max_s)
    mark.unlink(missing_ok=True)
    log.info("replica_stopped")


async def _check_alone(settings: ReplicaSettings) -> None:
    """Find two replicas of one name, or two ledgers that could be ours, before the lock is asked for."""
    try:
        async with asyncio.timeout(settings.election.lease_s + _ASK_AROUND_MAX_S):
            await settings.database.check_alone(settings.name, settings.election)
    except (StoreUnavailable, TimeoutError) as error:  # the doctor finds them, too
        log.warning("neighbours_unknown", detail=str(error) or "no answer in time")


async def _until_stopped(core: Core, stop_max_s: float) -> None:
    """Wait until the election ends, by a signal or by failing, or something else fails."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, core.election.stop)
    loop.add_signal_handler(signal.SIGHUP, core.front_ends.reload)
    try:
        await run_to_the_end(core.participant, core.election, core.front_ends.run(), stop_max_s=stop_max_s)
    finally:
        await asyncio.gather(core.bulletin.flush(), core.participant.marks.leave())
