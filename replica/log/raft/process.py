"""One log node as a process: the identity of its disk, repair before it takes part, signals, and its end."""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import structlog

from ha.raft.core import LogIncomplete
from ha.raft.messages import Entry
from replica.log.raft.client import CallFailed, LogClient
from replica.log.raft.copying import copy_segments
from replica.log.raft.files import Folder
from replica.log.raft.node import LogNode
from replica.log.raft.notes import Identity, Seal, decode_note, write_note
from replica.log.raft.opening import Opened, Opening
from replica.log.raft.segments import SegmentLog, fresh
from replica.log.raft.settings import LogNodeSettings
from replica.log.raft.signing import SEED_BYTES
from replica.notary.changed_files import CHANGES_LOOK_S, seen
from replica.notary.errors import ConfigError, LogUnavailable
from replica.notary.tasks import cancelled

IDENTITY = "identity"
_LOCK = "lock"
_REPAIR_RETRY_S = 1.0
_log = structlog.get_logger(__name__)


def find_identity(settings: LogNodeSettings, *, new_group: bool) -> tuple[Identity, Folder]:
    """The node's identity, and the folder of its log: from the disk, or new.

    An empty disk has a new id and key, because the old one's votes and acknowledgements are gone with it. Raises
    ConfigError if the disk is another group's or has a log already, and LogIncomplete if its identity is damaged.
    """
    root = Folder(settings.data_dir)
    identity: Identity | None = None
    if IDENTITY in root.names():
        identity = decode_note(root.read(IDENTITY), Identity)
        if identity is None:
            raise LogIncomplete(f"{settings.data_dir / IDENTITY} is damaged")
        if identity.group != settings.group:
            raise ConfigError(f"{settings.data_dir} belongs to the group {identity.group!r}, not {settings.group!r}")
        if new_group:
            raise ConfigError(f"{settings.data_dir} is the disk of {identity.node_id}: start it without --new-group")
    if identity is None or settings.identity == "process":
        node_id = f"{settings.name}.{secrets.token_hex(4)}"
        identity = Identity(settings.group, node_id, secrets.token_bytes(SEED_BYTES))
        fresh(Folder(settings.data_dir / identity.node_id))
        write_note(root, IDENTITY, identity)
        _log.info("log_node_is_new", node_id=identity.node_id)
    return identity, Folder(settings.data_dir / identity.node_id)


async def refuse_second_log(settings: LogNodeSettings) -> None:
    """Raise ConfigError if a peer that answers has the group's log: this node must join it, not begin another."""
    tls = None if settings.tls is None else settings.tls.contexts()[1]
    for name, address in settings.peers.items():
        with suppress(LogUnavailable, CallFailed, TimeoutError):
            client = await LogClient.connect(address, settings.group, tls, answer_max_s=settings.hello_max_s)
            try:
                async with asyncio.timeout(settings.hello_max_s):
                    has_log = bool(client.log_id or (await client.status())["last_idx"])
            finally:
                await client.close()
            if has_log:
                raise ConfigError(
                    f"{name} has the log of {settings.group!r} already: start this node without --new-group, and add it"
                    " with notary log add"
                )


def lock_folder(folder: Path) -> int:
    """Keep other processes out for as long as this one lives; returns the open file. Raises ConfigError."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(fd)
        raise ConfigError(f"another log node runs on {folder}") from None
    return fd


async def run_node(settings: LogNodeSettings, *, new_group: bool = False) -> None:
    """Run one log node until SIGTERM or SIGINT; SIGHUP reads its certificates again.

    Raises ConfigError, LogIncomplete, LogUnavailable and OSError.
    """
    lock = lock_folder(settings.data_dir)
    try:
        if new_group:
            await refuse_second_log(settings)
        identity, folder = find_identity(settings, new_group=new_group)
        opening = Opening(settings.group, identity.node_id, identity.key, folder, settings.segment_bytes)
        await _repair(settings, opening.log)
        opened = opening.finished()
        leader = await _take_part(settings, opened, new_group=new_group, may_copy=True)
        if leader is not None:
            copying = asyncio.create_task(copy_segments(settings, folder, opened, leader), name="copying")
            _on_signals(copying.cancel, lambda: None)  # certificates are read again afterwards in any case
            await asyncio.wait({copying})
            if not copying.cancelled():
                copying.result()
                await _take_part(settings, opened, may_copy=False)
        _log.info("log_node_stopped", node_id=identity.node_id)
    finally:
        os.close(lock)


async def _take_part(
    settings: LogNodeSettings, opened: Opened, *, new_group: bool = False, may_copy: bool
) -> str | None:
    """Run the node until it is stopped, or until a leader is so far ahead that segments are copied: its name."""
    node = LogNode(settings, opened, may_copy=may_copy)
    reloads: set[asyncio.Task[None]] = set()
    _on_signals(node.stop, lambda: reloads.add(asyncio.create_task(_reload(node))))
    _log.info("log_node_started", node_id=opened.node_id, last_idx=opened.log.last_idx, view=node.raft.view)
    watching = asyncio.create_task(_watch_certificates(node), name="certificates")
    try:
        await node.run(new_group=new_group)
    finally:
        await cancelled(watching)
    return node.leader_ahead


async def _watch_certificates(node: LogNode) -> None:
    """Read renewed certificates within a minute."""
    tls = node.settings.tls
    files = [] if tls is None else [tls.ca_file, tls.certificate_file, tls.key_file]
    known = seen(files)
    while files:
        await asyncio.sleep(CHANGES_LOOK_S)
        if (now := seen(files)) != known:
            known = now
            await _reload(node)


def _on_signals(stop: Callable[[], object], reload: Callable[[], object]) -> None:
    for number, react in ((signal.SIGTERM, stop), (signal.SIGINT, stop), (signal.SIGHUP, reload)):
        asyncio.get_running_loop().add_signal_handler(number, react)


async def _reload(node: LogNode) -> None:
    try:
        await node.links.reload()
        _log.info("reloaded", part="certificates", result="log node")
    except ConfigError as error:
        _log.error("reload_refused", part="certificates", code=error.code.name, detail=error.detail)
    except OSError as error:
        node.fail(error)


async def _repair(settings: LogNodeSettings, log: SegmentLog) -> None:
    """Fetch damaged sealed segments from peers that have them; the node takes part in nothing meanwhile."""
    while log.damaged:
        for seal in log.damaged:
            for name, address in settings.peers.items():
                with suppress(LogUnavailable, CallFailed):
                    entries = await _fetch(settings, address, seal)
                    if log.repair(seal, entries):
                        _log.warning(
                            "log_segment_repaired", peer=name, first_idx=seal.first_idx, last_idx=seal.last_idx
                        )
                        break
                    _log.error("log_segment_differs", peer=name, first_idx=seal.first_idx, last_idx=seal.last_idx)
            else:
                _log.error("log_segment_damaged", first_idx=seal.first_idx, last_idx=seal.last_idx)
        if log.damaged:
            await asyncio.sleep(_REPAIR_RETRY_S)


async def _fetch(settings: LogNodeSettings, address: str, seal: Seal) -> list[Entry]:
    tls = None if settings.tls is None else settings.tls.contexts()[1]
    client = await LogClient.connect(address, settings.group, tls, answer_max_s=settings.hello_max_s)
    entries: list[Entry] = []
    try:
        while not entries or entries[-1].idx < seal.last_idx:
            first = entries[-1].idx + 1 if entries else seal.first_idx
            async with asyncio.timeout(settings.hello_max_s):
                more, _ = await client.read(first, seal.last_idx)
            if not more:
                raise LogUnavailable(f"{address} has not got {first} yet")
            entries += more
    except TimeoutError:
        raise LogUnavailable(f"{address} does not answer") from None
    finally:
        await client.close()
    return entries
