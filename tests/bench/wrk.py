"""Runs wrk with prepared bodies and reads its figures."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

_SCRIPT = Path(__file__).with_name("load.lua")
_MARK = "RESULT "


class LoadFailed(RuntimeError):
    """wrk did not run, or some request was not answered with success."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What one run of wrk saw. Latencies in milliseconds by quantile (p50, p90, p99, p99.9, max)."""

    requests: int
    duration_s: float
    latency_ms: dict[str, float]

    @property
    def per_second(self) -> float:
        """Answered HTTP requests a second."""
        return self.requests / self.duration_s


def run_wrk(
    host: str, port: int, path: str, bodies: Path, from_byte: int, connections: int, duration_s: float, threads: int = 1
) -> LoadResult:
    """Load `http://host:port/path` for `duration_s` from closed-loop connections, each body sent once.

    Raises LoadFailed unless every answer had a status below 400 and no connection failed.
    """
    argv = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{max(1, round(duration_s))}s", "--timeout", "20s"]
    argv += ["-s", str(_SCRIPT), f"http://{host}:{port}", "--", str(bodies), str(from_byte), path, str(threads)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=duration_s + 60, check=False)
    found = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not found:
        raise LoadFailed(f"wrk ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    result = json.loads(found[0].removeprefix(_MARK))
    errors = {name: count for name, count in result.items() if name.startswith("errors_") and count}
    if errors:
        raise LoadFailed(f"wrk counted {errors} of {result['requests']} requests")
    return LoadResult(result["requests"], result["duration_s"], result["latency_ms"])
