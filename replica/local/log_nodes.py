"""The log nodes of a local cluster whose request log is on nodes of our own: one beside each replica."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path

from replica.local.kept import KeptProcess, Say
from replica.local.machine import Machine
from replica.local.process import Command
from replica.local.replica import COMMAND_LINE
from replica.log.raft.log_settings import RaftLogSettings

FOLDER = "log"
GROUP = "local"


class LogNodeProcess(KeptProcess):
    """Runs `notary log-node` and keeps it running. A new log is begun by its first start, and by no other."""

    def __init__(
        self, name: str, config_path: Path, log_path: Path, machine: Machine, say: Say, *, begins: bool
    ) -> None:
        argv = [sys.executable, "-m", COMMAND_LINE, "log-node", "--config", str(config_path), "--name", name]
        self._ever_after = Command(name=f"log node {name}", argv=argv, log_path=log_path, enter=machine.enter)
        super().__init__(replace(self._ever_after, argv=[*argv, "--new-group"]) if begins else self._ever_after, say)

    def _begin(self) -> None:
        super()._begin()
        self._process.command = self._ever_after


class LogNodes:
    """The nodes r1, r2, …, each with the name of the replica that it stands beside."""

    def __init__(self, settings: RaftLogSettings, config_path: Path, machines: dict[str, Machine], say: Say) -> None:
        is_new = not any((settings.data_dir / name).exists() for name in settings.addresses)
        self.nodes = {
            name: LogNodeProcess(
                name,
                config_path,
                settings.data_dir / f"{name}.log",
                machines[name],
                say,
                begins=is_new and name == min(settings.addresses),
            )
            for name in settings.addresses
        }

    def start(self) -> None:
        """Start all of them. They answer a moment later."""
        for node in self.nodes.values():
            node.start()

    async def stop(self) -> None:
        """Stop all of them, in any order: who leads hands over. May be repeated."""
        await asyncio.gather(*(node.stop() for node in self.nodes.values()))

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of those that run."""
        return tuple(node.pid for node in self.nodes.values() if node.running)


def values_of(addresses: dict[str, str]) -> dict[str, object]:
    """The table `[log]` for a cluster with these nodes."""
    nodes = ",".join(f"{name}={address}" for name, address in addresses.items())
    return {
        "kind": RaftLogSettings.kind,
        RaftLogSettings.kind: {
            "group": GROUP,
            "nodes": nodes,
            "data_dir": FOLDER,
            "members_min": min(3, len(addresses)),
        },
    }
