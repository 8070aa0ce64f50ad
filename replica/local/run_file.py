"""The run file: how other commands find a cluster that a supervisor keeps running.

The supervisor writes it whole once everything serves and deletes it when it stops. A killed supervisor leaves the file
in place. Readers notice that, because it names the supervisor by process id and start time.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from replica.local.process import ServerFailed

FILE_NAME = "run.json"
Pid = Annotated[int, Field(ge=1, le=2**31 - 1)]
Port = Annotated[int, Field(ge=1, le=65_535)]


class ProcessIdentity(BaseModel):
    """A process. Its start time distinguishes it from a later one with the same id."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    pid: Pid
    started_ticks: int = Field(ge=0, le=2**63 - 1, description="Clock ticks from the machine's start to the process's.")

    @classmethod
    def of(cls, pid: int) -> Self:
        """The identity of a process that runs now. Raises ServerFailed if there is none."""
        ticks = _started_ticks(pid)
        if ticks is None:
            raise ServerFailed(f"there is no process {pid}")
        return cls(pid=pid, started_ticks=ticks)

    def runs(self) -> bool:
        """True while this very process has not ended."""
        return _started_ticks(self.pid) == self.started_ticks


class ReplicaRun(BaseModel):
    """Where one replica of the cluster is."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    pid: Pid
    api_port: Port
    health_port: Port


class RunFile(BaseModel):
    """A running cluster. Holds no secret: those stay in the configuration's own files."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    supervisor: ProcessIdentity
    endpoint: str = Field(description="What applications are given: the URL of the balancer's port.")
    config_path: Path
    replicas: tuple[ReplicaRun, ...]
    postgres_port: Port | None = None  # where the replicas share a database
    postgres_pid: Pid | None = None
    log_address: str
    log_pids: tuple[Pid, ...]
    haproxy_pid: Pid | None = None  # where a forwarder in the supervisor has its place
    haproxy_stats_socket: Path

    def write(self, folder: Path) -> None:
        """Put the file in place whole, so that no reader sees half of it."""
        partial = folder / f"{FILE_NAME}.partial"
        partial.write_text(self.model_dump_json(indent=2) + "\n")
        partial.replace(folder / FILE_NAME)

    @staticmethod
    def remove(folder: Path) -> None:
        """Delete the file; nothing happens if there is none."""
        (folder / FILE_NAME).unlink(missing_ok=True)


def find_cluster(folder: Path) -> RunFile:
    """The cluster that runs in `folder` now. Raises ServerFailed when there is none or its supervisor has ended."""
    path = folder / FILE_NAME
    try:
        run = RunFile.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise ServerFailed(f"no cluster runs in {folder}: there is no {path}") from None
    except ValidationError as error:
        raise ServerFailed(f"{path} was not written by this release: {error}") from error
    if not run.supervisor.runs():
        raise ServerFailed(f"no cluster runs in {folder}: its supervisor, process {run.supervisor.pid}, has ended")
    return run


def this_process() -> ProcessIdentity:
    """The identity of the caller's own process."""
    return ProcessIdentity.of(os.getpid())


def _started_ticks(pid: int) -> int | None:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        # The command's name, in parentheses, may hold anything; what follows is the third field and on.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        if fields[0] not in "ZX":  # a process that has ended and waits to be collected
            return int(fields[19])
    return None
