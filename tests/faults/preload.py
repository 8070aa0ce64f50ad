"""Libraries that stand between a replica and its system: libfaketime for the clock, libfiu for I/O errors."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from replica.local.cluster import LocalCluster
from replica.local.replica import ReplicaProcess
from tests.faults.scenarios import wait_for_return

_LIBRARIES = Path("/usr/lib")
CTRL_MAX_S = 10.0


class WallClock:
    """The wall clock of one replica, from its next start on. Monotonic and boot time go on as they are."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "faketime"
        self.set("+0")

    def env(self) -> dict[str, str]:
        """What the replica's process must find in its environment."""
        return {
            "LD_PRELOAD": str(library("faketime/libfaketimeMT.so.1", "faketime")),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": "1",  # seconds until a change is seen
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset: str) -> None:
        """In faketime's words: `+3600`, `-1h`, `+0 x1.1`."""
        partial = self._file.with_suffix(".partial")
        partial.write_text(offset + "\n")
        partial.replace(self._file)


class Failpoints:
    """I/O errors of one replica, from its next start on, each switched on while it runs."""

    def __init__(self, folder: Path) -> None:
        self._prefix = folder / "fiu"

    def env(self) -> dict[str, str]:
        """What the replica's process must find in its environment."""
        libraries = [library(f"fiu/{name}", "fiu-utils") for name in ("fiu_run_preload.so", "fiu_posix_preload.so")]
        return {"LD_PRELOAD": " ".join(map(str, libraries)), "FIU_CTRL_FIFO": str(self._prefix)}

    async def fail_once(self, replica: ReplicaProcess, point: str, errno: int) -> None:
        """Let the next call of this kind fail, such as `posix/io/sync/fdatasync`."""
        command = f"enable name={point},failinfo={errno},onetime"
        argv = ["fiu-ctrl", "-f", str(self._prefix), "-c", command, str(replica.pid)]
        await asyncio.to_thread(subprocess.run, argv, check=True, timeout=CTRL_MAX_S)


async def restart_with(cluster: LocalCluster, replica: ReplicaProcess, env: dict[str, str]) -> None:
    """Start a replica again with these variables; returns once all replicas are well."""
    await replica.stop()
    replica.install(Path(sys.executable), cluster.config_path, env)
    replica.start()
    await wait_for_return(cluster)


def library(name: str, package: str) -> Path:
    """A library that can be preloaded. The test is skipped, and so counts as failed, where it is not installed."""
    found = next(iter(sorted(_LIBRARIES.glob(f"**/{name}"))), None)
    if found is None or (package == "fiu-utils" and shutil.which("fiu-ctrl") is None):
        pytest.skip(f"NOT PLAYED: Debian's {package} is not installed (scripts/setup.sh --for-tests)")
    return found
