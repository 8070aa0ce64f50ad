"""`notary watch` over real processes: small stand-ins for replicas that listen, hang, end and come back."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ha.watch.core import GaveUp, Up
from ha.watch.driver import Watch, WatchedReplica
from ha.watch.settings import WatchSettings
from haproxy.render import ReplicaAddress
from replica.local.ports import LOOPBACK, PortReservation
from replica.local.watched import watched_replica
from replica.notary.exit_codes import EXIT_CONFIGURATION
from tests.waiting import eventually

STAND_IN = """
import http.server, os, sys

class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass

port, code, pids = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
open(pids, "a").write(f"{os.getpid()}\\n")
if code:
    sys.exit(code)
http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
"""
QUICK = WatchSettings(
    check_interval_s=0.05, check_timeout_s=0.05, failures_max=4, stop_max_s=0.3, restart_pause_s=0.1, steady_after_s=5
)


class Stands:
    """Two stand-ins under a watch, and the reports on them."""

    def __init__(self, folder: Path, ports: PortReservation, code: int, settings: WatchSettings = QUICK) -> None:
        self.folder = folder
        self.told: list[tuple[str, str]] = []
        replicas = [self._replica(name, ports, code if name == "r1" else 0, settings) for name in ("r1", "r2")]
        self.watch = Watch(replicas, settings, self._say, person_code=EXIT_CONFIGURATION)

    def _say(self, name: str, text: str) -> None:
        self.told.append((name, text))

    def _replica(self, name: str, ports: PortReservation, code: int, settings: WatchSettings) -> WatchedReplica:
        address = ReplicaAddress(name=name, host=LOOPBACK, api_port=ports.take(), health_port=ports.take())
        argv = [sys.executable, "-c", STAND_IN, str(address.health_port), str(code), str(self.folder / name)]
        return watched_replica(address, argv, self.folder / f"{name}.log", settings)

    def pids(self, name: str) -> list[int]:
        path = self.folder / name
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    async def up(self, *names: str) -> None:
        async def all_up() -> bool:
            return all(isinstance(self.watch.states.get(name), Up) for name in names)

        await eventually(all_up)

    async def started_again(self, name: str) -> None:
        async def twice() -> bool:
            return len(self.pids(name)) == 2

        await eventually(twice)
        await self.up(name)


@asynccontextmanager
async def watching(stands: Stands) -> AsyncIterator[Stands]:
    task = asyncio.create_task(stands.watch.run())
    try:
        yield stands
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=["killed", "ended", "frozen"])
async def test_what_ends_or_hangs_is_started_again(
    tmp_path: Path, ports: PortReservation, fault: signal.Signals
) -> None:
    """Goal: a replica comes back, whatever became of it, and its peer is left alone. Method: signals at one of two."""
    async with watching(Stands(tmp_path, ports, 0)) as stands:
        await stands.up("r1", "r2")
        (pid,) = stands.pids("r1")
        os.kill(pid, fault)
        await stands.started_again("r1")
        assert len(stands.pids("r2")) == 1
    for name in ("r1", "r2"):
        assert not Path(f"/proc/{stands.pids(name)[-1]}").exists(), "the watch left a child behind"


async def test_what_needs_a_person_is_left_alone(tmp_path: Path, ports: PortReservation) -> None:
    """Goal: no crash loop over a configuration error. Method: exit code 2; the peer runs, this one ran once."""
    async with watching(Stands(tmp_path, ports, 2)) as stands:
        await stands.up("r2")

        async def given_up() -> bool:
            return isinstance(stands.watch.states["r1"], GaveUp)

        await eventually(given_up)
        assert len(stands.pids("r1")) == 1
    assert ("r1", "a person is needed: see its log; it is left alone") in stands.told


async def test_hooks_start_and_stop_what_is_nobodys_child(tmp_path: Path, ports: PortReservation) -> None:
    """Goal: another service manager does the work. Method: commands that write down that they were called."""
    note = tmp_path / "called"
    commands = {
        "start_command": f"sh -c 'echo start {{name}} >> {note}'",
        "stop_command": f"sh -c 'echo stop {{name}} >> {note}'",
    }
    settings = QUICK.model_copy(update={**commands, "start_max_s": 0.2})
    async with watching(Stands(tmp_path, ports, 0, settings)):

        async def both() -> bool:
            return note.exists() and {"start r1", "start r2", "stop r1"} <= set(note.read_text().splitlines())

        await eventually(both)
