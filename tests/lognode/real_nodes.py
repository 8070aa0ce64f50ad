"""Log nodes as processes on loopback, and what tests do to them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ha.raft.messages import Entry, Kind
from replica.local.ports import PortReservation
from replica.log.raft.client import CallFailed, LogClient
from replica.log.raft.wire import Appended
from replica.notary.errors import LogUnavailable
from tests.certificates import Authority

GROUP = "tests"
WAIT_S = 60.0  # the machine may be busy


_ports = PortReservation()  # for as long as this process lives


def free_ports(count: int) -> list[int]:
    """Below what outgoing connections get: a node that dials a port where nobody listens yet must not meet itself."""
    return [_ports.take() for _ in range(count)]


class Nodes:
    """The nodes r1, r2, … of one log."""

    def __init__(self, folder: Path, count: int = 3, authority: Authority | None = None, **settings: object) -> None:
        self.folder = folder
        self.authority = authority
        self.settings = {"message_timeout_ms": 100, "election_timeout_ms": 1_000, "segment_bytes": 2**16} | settings
        self.settings.setdefault("entry_max_bytes", 2**14)
        self.change_max_s = float(str(self.settings.get("change_max_s", WAIT_S)))
        self.names = [f"r{number}" for number in range(1, count + 1)]
        self.addresses = {name: f"127.0.0.1:{port}" for name, port in zip(self.names, free_ports(count), strict=True)}
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)
        for name in self.names:
            self.write_settings(name)

    # ---------------------------------------------------------------------------------------------------- processes

    def write_settings(self, name: str, authority: Authority | None = None, **changed: object) -> None:
        values: dict[str, object] = {
            "group": GROUP,
            "name": name,
            "listen": self.addresses[name],
            "data_dir": f"data-{name}",
        }
        values |= self.settings | changed
        lines = [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        lines += ["[peers]", *(f'{peer} = "{self.addresses[peer]}"' for peer in self.names if peer != name)]
        authority = authority or self.authority
        if authority is not None:
            certificate, key = authority.issue(name)
            lines += ["[tls]", f'ca_file = "{authority.ca_file}"', f'certificate_file = "{certificate}"']
            lines += [f'key_file = "{key}"']
        (self.folder / f"{name}.toml").write_text("\n".join(lines) + "\n")

    def start(self, name: str, *words: str) -> None:
        argv = [
            sys.executable,
            "-m",
            "replica.cli",
            "log-node",
            "--settings",
            str(self.folder / f"{name}.toml"),
            *words,
        ]
        with self.log_file(name).open("ab") as log:
            self.running[name] = subprocess.Popen(argv, stdout=log, stderr=log)

    def kill(self, name: str) -> None:
        process = self.running.pop(name)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(WAIT_S)

    def terminate(self, name: str) -> int:
        process = self.running.pop(name)
        process.terminate()
        return process.wait(WAIT_S)

    def stop_all(self) -> None:
        for name in list(self.running):
            self.kill(name)

    def log_file(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def lines(self, name: str, event: str) -> list[dict[str, Any]]:
        text = self.log_file(name).read_text() if self.log_file(name).exists() else ""
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [line for line in found if line["event"] == event]

    def disk(self, name: str) -> Path:
        """The folder of the log of the newest identity."""
        folders = [path for path in (self.folder / f"data-{name}").iterdir() if path.is_dir()]
        return max(folders, key=lambda path: path.stat().st_ctime_ns)

    def segments(self, name: str) -> list[Path]:
        return sorted(self.disk(name).glob("*.segment"))

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`notary …` with the settings of the first node that runs."""
        settings = self.folder / f"{min(self.running)}.toml"
        argv = [sys.executable, "-m", "replica.cli", *words, "--settings", str(settings)]
        return subprocess.run(argv, capture_output=True, text=True, timeout=2 * WAIT_S, check=False)

    # -------------------------------------------------------------------------------------------------------- calls

    def client_tls(self) -> ssl.SSLContext | None:
        if self.authority is None:
            return None
        certificate, key = self.authority.issue("client")
        context = ssl.create_default_context(cafile=str(self.authority.ca_file))
        context.load_cert_chain(certificate, key)
        context.check_hostname = False
        return context

    async def client(self, name: str) -> LogClient:
        return await LogClient.connect(self.addresses[name], GROUP, self.client_tls())

    async def status(self, name: str) -> dict[str, Any] | None:
        try:
            client = await self.client(name)
        except LogUnavailable:
            return None
        try:
            async with asyncio.timeout(5):
                return await client.status()
        except (LogUnavailable, TimeoutError):
            return None
        finally:
            await client.close()

    async def until(self, holds: Callable[[dict[str, dict[str, Any]]], bool]) -> dict[str, dict[str, Any]]:
        """Wait until the states of all nodes that answer are so."""
        async with asyncio.timeout(WAIT_S):
            while True:
                found = {name: await self.status(name) for name in list(self.running)}
                states = {name: state for name, state in found.items() if state is not None}
                if holds(states):
                    return states
                for name, process in self.running.items():
                    assert process.poll() is None, f"{name} ended: {self.log_file(name).read_text()[-2_000:]}"
                await asyncio.sleep(0.1)

    async def leader(self, among: Iterable[str] | None = None) -> str:
        """The node that leads, confirmed by a majority."""
        wanted = set(among or self.names)

        def leads(states: dict[str, dict[str, Any]]) -> bool:
            return bool(_leaders(states) & wanted)

        states = await self.until(leads)
        return max(_leaders(states) & wanted, key=lambda name: states[name]["current_view"])

    async def append(self, bodies: list[bytes], among: Iterable[str] | None = None) -> Appended:
        """Append at the leader, however often that takes; what has no answer is appended again."""
        async with asyncio.timeout(WAIT_S):
            while True:
                client = None
                try:
                    client = await self.client(await self.leader(among))
                    async with asyncio.timeout(10):
                        return await client.append(bodies)
                except (LogUnavailable, CallFailed, TimeoutError):
                    await asyncio.sleep(0.1)
                finally:
                    if client is not None:
                        await client.close()

    async def log_of(self, name: str, until_idx: int) -> list[Entry]:
        """The committed log that a node reads from its own disk, once it goes up to there."""
        await self.until(lambda states: name in states)
        entries: list[Entry] = []
        client = await self.client(name)
        try:
            async with asyncio.timeout(WAIT_S):
                while len(entries) < until_idx:
                    more, _ = await client.read(len(entries) + 1)
                    entries += more
                    await asyncio.sleep(0 if more else 0.05)
        finally:
            await client.close()
        return entries

    async def start_group(self, names: Sequence[str] = ()) -> dict[str, str]:
        """Start these, or all; the first begins the log, and makes the others members. Returns everybody's id."""
        first, *others = members = list(names or self.names)
        self.start(first, "--new-group")
        for name in others:
            self.start(name)
        states = await self.until(
            lambda states: (
                len(states) == len(members)
                and len(states[first]["connected"]) == len(others)
                and first in _leaders(states)
            )
        )
        ids = {name: str(state["node_id"]) for name, state in states.items()}
        await self.change(first, ids.values())
        return ids

    async def change(self, leader: str, ids: Iterable[str]) -> None:
        client = await self.client(leader)
        try:
            async with asyncio.timeout(self.change_max_s):
                await client.change(sorted(ids))
        finally:
            await client.close()


def _leaders(states: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, state in states.items() if state["leadership_state"] == "Leader"}


def bodies_of(entries: Iterable[Entry]) -> list[bytes]:
    return [entry.body for entry in entries if entry.kind is Kind.RAW]


def freeze(process: subprocess.Popen[bytes]) -> None:
    os.kill(process.pid, signal.SIGSTOP)
