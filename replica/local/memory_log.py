"""The process that keeps a request log in memory, for a local cluster without a broker. The log ends with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replica.local.process import Command, ManagedProcess
from replica.log.in_memory.settings import MemoryLogSettings
from replica.log.open import open_log_admin
from replica.notary.errors import LogUnavailable
from replica.notary.own_process import module_argv

READY_MAX_S = 30.0
STOP_GRACE_S = 5.0


class MemoryLogProcess:
    """Runs the log's process, once: a restarted process would have another log."""

    def __init__(self, folder: Path) -> None:
        self._socket_path = folder / "log.sock"
        argv = module_argv("replica.log.in_memory.server", str(self._socket_path))
        self.process = ManagedProcess(Command(name="log in memory", argv=argv, log_path=folder / "log.log"))

    def settings(self) -> dict[str, Any]:
        """The table `[log]` for its users."""
        return {"kind": MemoryLogSettings.kind, MemoryLogSettings.kind: {"socket_path": str(self._socket_path)}}

    async def start(self) -> None:
        """Start it; returns once it answers. Raises ServerFailed."""
        self.process.start()
        await self.process.wait_ready(self._answers, READY_MAX_S)

    async def stop(self) -> None:
        """Stop it, and lose the log. May be repeated."""
        await self.process.stop(STOP_GRACE_S)

    async def _answers(self) -> bool:
        try:
            await open_log_admin(MemoryLogSettings(socket_path=self._socket_path)).topic_id()
        except LogUnavailable:
            return False
        return True
