"""Latency at rates that are offered whatever the answers: at half of capacity, and from a tenth of it to more than all.

Capacity is our rate of single requests in the same run, over 256 connections that each wait for their answer. The rival
is offered the same rates, in the form that answers sooner at half of that: a transaction per request, or as batched as
Postgres allows.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

import msgspec

from haproxy.render import Endpoint
from replica.local.cluster import LocalCluster
from replica.local.ports import LOOPBACK
from tests.bench.arrivals import poisson_arrivals
from tests.bench.generator import ANSWERED_MAX_S, GeneratorSettings, OpenLoopResult
from tests.bench.load import SINGLE, LoadGenerator
from tests.bench.pictures import Curve, latency_curve
from tests.bench.report import Report, quantiles
from tests.bench.rival import Variant, alternative, variants
from tests.bench.sizes import Sizes
from tests.bench.throughput import SUBMISSIONS_UNIT
from tests.bench.usage import Parts, add_cpu, cpu_s, parts_of
from tests.bench.wrk import LoadFailed

SHARES = tuple(tenths / 10 for tenths in range(1, 13))
WARM_UP_S = 2.0
EXIT_SLACK_S = 10.0
CURVE_PICTURE = "latency-curve.svg"


async def measure_half(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> None:
    """Ours at half of capacity, and what the generator itself adds. Raises LoadFailed."""
    per_s = _capacity(report) / 2
    report.section("Open loop: single requests that come at random, whether or not earlier ones have been answered")
    report.add("open_loop_half_offered_per_s", round(per_s, 1), "offered, half of capacity", f"{per_s:,.0f} a second")
    async with null_server() as endpoint:
        alone = await run_open_loop(endpoint, load, per_s, sizes.run_s)
    for name in ("p50", "p99"):
        report.figures[f"open_loop_generator_{name}_ms"] = alone.latency_ms[name]
    report.line("the generator against a server that does nothing", quantiles(alone.latency_ms))
    found = await _half(cluster.config.endpoint, load, per_s, sizes, await parts_of(cluster))
    _add_half("open_loop_half", "ours", found, report)


async def measure_rival_half(cluster: LocalCluster, load: LoadGenerator, sizes: Sizes, report: Report) -> Variant:
    """The rival at the same rate; returns its better form. The replicas must have been stopped. Raises LoadFailed."""
    per_s = _capacity(report) / 2
    report.section("Open loop: the alternative at the same rate")
    found: dict[Variant, _Half] = {}
    for variant in await variants(cluster, load, sizes, report):
        async with alternative(cluster, variant) as (endpoint, parts):
            found[variant] = await _half(endpoint, load, per_s, sizes, parts)
        shown = " ".join(f"{result.latency_ms.get('p99', 0):.1f}" for result in found[variant].results)
        report.line(f"{variant}, p99", f"{shown} ms")
    best = min(found, key=lambda variant: _middle(found[variant].results, "p99"))
    _add_half("postgres_open_loop_half", str(best), found[best], report)
    for name in ("p50", "p99"):
        ratio = round(_figure(report, f"open_loop_half_{name}_ms") / _middle(found[best].results, name), 3)
        report.add(f"open_loop_half_{name}_ratio", ratio, f"{name}, ours over the alternative's", f"{ratio:.2f}")
    return best


async def measure_curve(endpoint: Endpoint, load: LoadGenerator, name: str, sizes: Sizes, report: Report) -> Curve:
    """Latencies at each share of our capacity; what failed, or was refused for overload, is counted."""
    capacity = _capacity(report)
    report.section(f"Latency at each offered rate, {name}")
    await run_open_loop(endpoint, load, capacity / 2, WARM_UP_S)
    curve = []
    for share in SHARES:
        result = await run_open_loop(endpoint, load, share * capacity, sizes.curve_s)
        lost = sum(result.failed.values()) / result.due
        curve.append(
            {"share": share, "offered_per_s": round(share * capacity, 1), "failed": round(lost, 4)} | result.latency_ms
        )
        failed = f", {lost:.1%} not answered with success" if lost else ""
        report.line(f"{share:.0%}: {share * capacity:,.0f} a second", quantiles(result.latency_ms) + failed)
    report.figures[f"{name}_latency_curve"] = curve
    return curve


def draw_curve(curves: dict[str, Curve], folder: Path, report: Report) -> None:
    """Both curves in one picture."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CURVE_PICTURE
    path.write_text(latency_curve(curves, _capacity(report)))
    report.line("drawn", str(path))


async def run_open_loop(
    endpoint: Endpoint, load: LoadGenerator, per_second: float, duration_s: float
) -> OpenLoopResult:
    """One run of the generator, every body sent once. Raises LoadFailed."""
    seed = Random().randrange(1 << 32)
    due = len(poisson_arrivals(per_second, duration_s, Random(seed)))
    bodies = await load.bodies(SINGLE, due)
    settings = GeneratorSettings(
        host=endpoint.host,
        port=endpoint.port,
        path=SINGLE.path,
        bodies=str(bodies.path),
        from_byte=0,
        per_second=per_second,
        duration_s=duration_s,
        seed=seed,
    )
    result = await asyncio.to_thread(_generate, settings)
    bodies.path.unlink()
    return result


def _generate(settings: GeneratorSettings) -> OpenLoopResult:
    argv = [sys.executable, "-m", "tests.bench.generator", msgspec.json.encode(settings).decode()]
    limit_s = settings.duration_s + ANSWERED_MAX_S + EXIT_SLACK_S
    done = subprocess.run(argv, capture_output=True, timeout=limit_s, check=False)
    if done.returncode:
        raise LoadFailed(f"the generator ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return msgspec.json.decode(done.stdout, type=OpenLoopResult)


@dataclass(frozen=True, slots=True)
class _Half:
    """The runs at half of capacity, and the processor seconds of each part for a request in them."""

    results: list[OpenLoopResult]
    used_s: dict[str, float]


async def _half(endpoint: Endpoint, load: LoadGenerator, per_s: float, sizes: Sizes, parts: Parts) -> _Half:
    await run_open_loop(endpoint, load, per_s, WARM_UP_S)
    before = cpu_s(parts)
    results = [await run_open_loop(endpoint, load, per_s, sizes.run_s) for _ in range(sizes.runs)]
    due = sum(result.due for result in results)
    return _Half(results, {part: (used_s - before[part]) / due for part, used_s in cpu_s(parts).items()})


def _add_half(key: str, label: str, half: _Half, report: Report) -> None:
    """Medians of the runs, and all quantiles of the one in the middle. Raises LoadFailed when a request failed."""
    results = half.results
    failed = {status: count for result in results for status, count in result.failed.items()}
    if failed:
        raise LoadFailed(f"{label}: requests failed, by status: {failed}")
    for name in ("p50", "p99"):
        report.add_runs(f"{key}_{name}_ms", [result.latency_ms[name] for result in results], f"{label}, {name}", "ms")
    middle = sorted(results, key=lambda result: result.latency_ms["p99"])[len(results) // 2]
    report.add(f"{key}_latency_ms", middle.latency_ms, f"{label}, latency", quantiles(middle.latency_ms))
    report.add(f"{key}_late_ms", middle.late_ms, f"{label}, of that the generator's delay", quantiles(middle.late_ms))
    report.line(f"{label}, answered", f"{middle.succeeded_per_s:,.0f} {SUBMISSIONS_UNIT}")
    add_cpu(f"{key}_cpu_us_per_submission", half.used_s, f"{label}, processor time per submission", report)


def _middle(results: Sequence[OpenLoopResult], name: str) -> float:
    """The median of a quantile; one that failed counts as never answered."""
    return median(float("inf") if result.failed else result.latency_ms[name] for result in results)


def _capacity(report: Report) -> float:
    return _figure(report, "single_tps_4_inputs")


def _figure(report: Report, name: str) -> float:
    value = report.figures[name]
    assert isinstance(value, float)
    return value


@asynccontextmanager
async def null_server() -> AsyncIterator[Endpoint]:
    """A server that answers at once, in a process of its own."""
    argv = (sys.executable, "-m", "tests.bench.null_server")
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        yield Endpoint(host=LOOPBACK, port=int(await process.stdout.readline()))
    finally:
        process.kill()
        await process.wait()
