"""What it costs that a record is on disk before it is acknowledged: `--only durability`, keys `durability_*`.

One notary for each number of brokers. Its topic is synced and left un-synced in turns (`flush.messages`), so that a
slow minute of the machine meets both. All brokers here share one disk and the processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from tests.bench.conditions import add_conditions
from tests.bench.load import BATCH, SINGLE, LoadGenerator, Shape
from tests.bench.report import Report, number
from tests.bench.sizes import Sizes
from tests.bench.stream import measure_rate

BROKERS = (1, 3)
FLUSHES = {"synced": "1", "replicated": str(2**63 - 1)}  # the latter is Kafka's default: never by count
ALONE = replace(SINGLE, connections=1)
UNITS = {"batch_tps": "/s", "stream_tps": "/s", "single_tps": "/s", "latency_ms_p50_one_connection": " ms"}

Measured = Mapping[str, float]
"""By the names of `UNITS`."""


async def measure_durability(folder: Path, sizes: Sizes, report: Report) -> None:
    """Both durabilities in turns, with each number of brokers."""
    for brokers in BROKERS:
        settings = ClusterSettings(folder=folder / f"brokers-{brokers}", replicas=2, brokers=brokers)
        await remove_cluster(settings.folder)
        async with LocalCluster(settings) as cluster:
            if brokers == BROKERS[0]:
                await add_conditions(cluster, report)
            report.section(f"Synced and replicated in turns, {brokers} broker{'s' if brokers > 1 else ''}, 4 inputs")
            await _in_turns(cluster, sizes, report)
        await remove_cluster(settings.folder)


def ratios(synced: list[Measured], replicated: list[Measured]) -> dict[str, float]:
    """The median of the turns' own ratios, synced over replicated, by name."""
    return {
        name: median(ours[name] / theirs[name] for ours, theirs in zip(synced, replicated, strict=True))
        for name in UNITS
    }


async def _in_turns(cluster: LocalCluster, sizes: Sizes, report: Report) -> None:
    load = LoadGenerator(cluster.folder / "bodies", cluster.parties)
    warm = {shape: await load.warm_up(cluster.config.endpoint, shape) for shape in (SINGLE, BATCH, ALONE)}
    found: dict[str, list[Measured]] = {durability: [] for durability in FLUSHES}
    for turn in range(sizes.runs):
        for durability in sorted(FLUSHES, reverse=turn % 2 == 0):
            await cluster.kafka.set_topic_config(cluster.topic, {"flush.messages": FLUSHES[durability]})
            found[durability].append(await _measured(cluster, load, warm, sizes))
    prefix = f"durability_{len(cluster.kafka.brokers)}_brokers"
    for name, unit in UNITS.items():
        for durability, runs in found.items():
            report.add_runs(f"{prefix}_{durability}_{name}", [run[name] for run in runs], f"{durability}, {name}", unit)
    for name, ratio in ratios(found["synced"], found["replicated"]).items():
        report.add(f"{prefix}_ratio_{name}", round(ratio, 3), f"synced over replicated, {name}", number(ratio))


async def _measured(cluster: LocalCluster, load: LoadGenerator, warm: Mapping[Shape, float], sizes: Sizes) -> Measured:
    endpoint = cluster.config.endpoint
    (stream_tps,) = await measure_rate(endpoint, cluster.parties, replace(sizes, runs=1))
    single, batch, alone = [
        (await load.measure(endpoint, shape, 1, sizes.run_s, per_second))[0] for shape, per_second in warm.items()
    ]
    return {
        "batch_tps": batch.per_second * BATCH.per_body,
        "stream_tps": stream_tps,
        "single_tps": single.per_second,
        "latency_ms_p50_one_connection": alone.latency_ms["p50"],
    }
