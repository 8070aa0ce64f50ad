"""One replica of a local cluster: core and front ends in one process group, started again when it ends by itself."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from haproxy.render import ReplicaAddress
from replica.local.kept import KeptProcess, Say
from replica.local.machine import THIS_MACHINE, Machine
from replica.local.process import Command, ManagedProcess, ServerFailed
from replica.notary.own_process import module_argv

COMMAND_LINE = "replica.cli"


class ReplicaProcess(KeptProcess):
    """Runs `notary replica` and keeps it running."""

    def __init__(
        self,
        address: ReplicaAddress,
        config_path: Path,
        folder: Path,
        say: Say,
        *,
        machine: Machine = THIS_MACHINE,
    ) -> None:
        self._machine = machine
        self._config_path = config_path
        self.address = address
        super().__init__(self._command(folder / "replica.log", Path(sys.executable), {}), say)

    def install(self, python: Path, config_path: Path, env: Mapping[str, str], module: str = COMMAND_LINE) -> None:
        """Run another release from the next start on: the Python of its environment, a configuration that it reads.

        `env` is on top of our own environment; `module` is its command line. Raises ServerFailed unless the replica is
        stopped.
        """
        if self.running:
            raise ServerFailed(f"{self.name} runs: stop it before another release is installed")
        self._config_path = config_path
        self._process = ManagedProcess(self._command(self.log_path, python, env, module))

    def kill_core(self) -> None:
        """SIGKILL for the core alone; its front ends must end by themselves. It comes back after `restart_pause_s`."""
        self._end_asked = True
        self._process.signal_leader(signal.SIGKILL)

    def freeze_core(self) -> None:
        """SIGSTOP for the core alone: it keeps all its resources and does nothing, while front ends go on."""
        self._process.signal_leader(signal.SIGSTOP)

    def _command(self, log_path: Path, python: Path, env: Mapping[str, str], module: str = COMMAND_LINE) -> Command:
        name = self.address.name
        argv = module_argv(module, "replica", "--config", str(self._config_path), "--name", name, python=python)
        return Command(name=name, argv=argv, log_path=log_path, env=env, enter=self._machine.enter)
