"""The log nodes of a local cluster whose request log is on nodes of our own: one beside each replica."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from replica.local.kept import KeptProcess, Say
from replica.local.machine import Machine
from replica.local.process import Command, ServerFailed
from replica.local.replica import COMMAND_LINE
from replica.log.raft.log_settings import RaftLogSettings
from replica.notary.own_process import module_argv

FOLDER = "log"
_UNFINISHED = "unfinished"  # this file is there from the first start of the nodes until the log was created
GROUP = "local"


class LogNodeProcess(KeptProcess):
    """Runs `notary log-node` and keeps it running. A new log is begun by its first start, and by no other."""

    def __init__(
        self, name: str, config_path: Path, log_path: Path, machine: Machine, say: Say, *, begins: bool
    ) -> None:
        argv = module_argv(COMMAND_LINE, "log-node", "--config", str(config_path), "--name", name)
        self._ever_after = Command(name=f"log node {name}", argv=argv, log_path=log_path, enter=machine.enter)
        super().__init__(replace(self._ever_after, argv=[*argv, "--new-group"]) if begins else self._ever_after, say)

    def install(self, python: Path, env: Mapping[str, str]) -> None:
        """Run another release from the next start on: the Python of its environment, on top of our own variables.

        Raises ServerFailed unless the node is stopped.
        """
        if self.running:
            raise ServerFailed(f"{self.name} runs: stop it before another release is installed")
        argv = [str(python), *self._ever_after.argv[1:]]
        self._ever_after = replace(self._ever_after, argv=argv, env=env)
        self._process.command = self._ever_after

    def _begin(self) -> None:
        super()._begin()
        self._process.command = self._ever_after


def make_log_nodes(
    settings: RaftLogSettings, config_path: Path, machines: Mapping[str, Machine], say: Say
) -> dict[str, LogNodeProcess]:
    """The nodes by their names, none of which runs yet. Where none of them has a disk, the first begins the log.

    What a first start left that was cut short is removed: some disks, and no log on them. Replicas start later, so
    there was no record.
    """
    if (settings.data_dir / _UNFINISHED).exists():
        shutil.rmtree(settings.data_dir)
    is_new = not any((settings.data_dir / name).exists() for name in settings.addresses)
    first = min(settings.addresses)
    if is_new:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        (settings.data_dir / _UNFINISHED).touch()
    return {
        name: LogNodeProcess(
            name, config_path, settings.data_dir / f"{name}.log", machines[name], say, begins=is_new and name == first
        )
        for name in settings.addresses
    }


def log_is_created(settings: RaftLogSettings) -> None:
    """Note that the log is there. Call it before anything writes to the log."""
    (settings.data_dir / _UNFINISHED).unlink(missing_ok=True)


def ports_in(table: Mapping[str, Any]) -> dict[str, int]:
    """Each node's port in the table `[log]` of the last start."""
    nodes = str(table.get(RaftLogSettings.kind, {}).get("nodes", ""))
    found = (entry.partition("=") for entry in nodes.split(",") if entry)
    return {name: int(address.rpartition(":")[2]) for name, _, address in found}


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
