"""Settings of the request log in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field

from replica.log.words import LogWords
from replica.notary.errors import ConfigError

CLOSE_MAX_S = 1.0  # a connection that needs longer to end does so by itself


class MemoryLogSettings(BaseModel):
    """The request log in the memory of one process, for tests on one machine: all of it goes with that process."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: ClassVar[str] = "memory"
    close_max_s: ClassVar[float] = CLOSE_MAX_S
    keeps_times: ClassVar[bool] = False
    one_machine_only: ClassVar[bool] = True
    all_may_serve: ClassVar[bool] = False
    survives_power_loss: ClassVar[bool] = False
    for_development: ClassVar[bool] = True
    words: ClassVar[LogWords] = LogWords(
        log="log in memory",
        server="process",
        servers="processes",
        reach="check log.memory.socket_path, and that the process of the log runs",
        copies="for tests only: all of the log goes with its process",
        create="start the process of the log: it makes the log",
        repair="start again with a new log, database and data folder",
        protect="end no process of the log that is still needed",
        restore="such a log is not restored: start again with a new log, database and data folder",
        page="docs/settings.md",
    )

    socket_path: Path = Field(description="Unix socket of the process that has the log.")
    answer_max_s: float = Field(5.0, gt=0, le=60, description="Longest wait for an answer of that process.")
    append_queue_max: int = Field(
        50_000, ge=1, le=10_000_000, description="Records not yet answered; past it, appends fail."
    )
    append_queue_max_mib: int = Field(64, ge=2, le=2_048, description="The same, in MiB.")

    @property
    def label(self) -> str:
        """What people call the log."""
        return f"in memory, {self.socket_path}"

    @property
    def address(self) -> str:
        """Where clients connect to it."""
        return str(self.socket_path)

    def plaintext_connections(self) -> Iterator[str]:
        """None: a Unix socket never leaves the machine."""
        return iter(())

    def check_files(self) -> None:
        """Nothing to check: a replica reads no file for this log."""

    def elsewhere(self, topic: str | None, servers: str | None) -> Self:
        """Raises ConfigError: a log in memory cannot be restored."""
        raise ConfigError(f"log.kind is {self.kind}: a log in memory has no archive to be restored from")
