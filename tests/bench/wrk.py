"""Runs wrk with prepared bodies and reads its figures."""

from __future__ import annotations

import json
import resource
import subprocess
from dataclasses import dataclass
from pathlib import Path

from haproxy.render import Endpoint

_SCRIPT = Path(__file__).with_name("load.lua")
_MARK = "RESULT "
_EXIT_SLACK_S = 60.0


class LoadFailed(RuntimeError):
    """wrk did not run, ran out of bodies, or some request was not answered with success."""


class OutOfBodies(LoadFailed):
    """The endpoint was faster than the bodies that were made for it: make more, and measure again."""


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What one run saw. Latencies in milliseconds by quantile: p50, p90, p99, p99.9, max."""

    requests: int
    bodies_taken: int  # sent or about to be: a later run goes on behind them
    duration_s: float
    latency_ms: dict[str, float]
    cpu_s: float  # of wrk itself

    @property
    def per_second(self) -> float:
        """Answered HTTP requests a second."""
        return self.requests / self.duration_s


def run_wrk(
    endpoint: Endpoint,
    path: str,
    bodies: Path,
    from_byte: int,
    connections: int,
    duration_s: float,
    threads: int = 1,
) -> LoadResult:
    """Load the endpoint for `duration_s` (whole seconds) from closed-loop connections, each body sent once.

    Raises OutOfBodies when they are too few, and LoadFailed unless every answer had a status below 400 and no
    connection failed. Blocks.
    """
    argv = ["wrk", f"-t{threads}", f"-c{connections}", f"-d{max(1, round(duration_s))}s", "--timeout", "20s"]
    argv += ["-s", str(_SCRIPT), f"http://{endpoint.host}:{endpoint.port}", "--"]
    argv += [str(bodies), str(from_byte), path, str(threads)]
    before_s = _children_cpu_s()
    done = subprocess.run(argv, capture_output=True, text=True, timeout=duration_s + _EXIT_SLACK_S, check=False)
    cpu_s = _children_cpu_s() - before_s
    found = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    if done.returncode or not found:
        raise LoadFailed(f"wrk ended with {done.returncode}: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    result = json.loads(found[0].removeprefix(_MARK))
    if result["ran_out"]:
        raise OutOfBodies(f"wrk ran out of bodies after {result['taken']}")
    errors = {name: count for name, count in result.items() if name.startswith("errors_") and count}
    if errors:
        raise LoadFailed(f"wrk counted {errors} of {result['requests']} requests")
    return LoadResult(result["requests"], result["taken"], result["duration_s"], result["latency_ms"], cpu_s)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)  # of those that have ended: wrk alone during a run
    return usage.ru_utime + usage.ru_stime
