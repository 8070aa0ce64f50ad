"""Throughput with many states, commands and completions in the index and the database, over that with none.

Each size has a cluster of its own, filled while its replicas are stopped (bulk.py). Before replicas start, the files of
index, database and log are dropped from the page cache. The empty cluster is measured first and last, in the same way.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

import numpy as np

from replica.index.rocks import SORTED_RUNS_SLOW
from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.participant import DATABASE
from replica.store.postgres.status import read_status
from tests.bench.bulk import (
    STATES_PER_TX,
    evict,
    fill_completions,
    fill_index,
    level_files,
    pile_up,
    refuse_small_disk,
)
from tests.bench.conditions import add_conditions, tell_deployment
from tests.bench.load import BATCH, SINGLE, LoadGenerator, Shape
from tests.bench.pictures import growth
from tests.bench.report import Report, number
from tests.bench.sizes import Sizes
from tests.bench.usage import compaction_cpu_s
from tests.faults.audit import wait_until_published
from tests.faults.scenarios import wait_for_return

REPLICAS = 2
SHAPES = {"single": SINGLE, "batch": BATCH}
WAITING_FILES = SORTED_RUNS_SLOW - 1  # the most that RocksDB lets wait before it slows the writer
FIRST_LOAD_S = 2.0
START_MAX_S = 300.0
GROWTH_PICTURE = "growth.svg"

Rates = dict[str, float]  # submissions a second, by the name of the shape


async def measure_scale(folder: Path, states: Sequence[int], sizes: Sizes, report: Report, pictures: Path) -> None:
    """Each number of states, ascending; the ratios are those of the last one. Raises DiskTooSmall, LoadFailed."""
    report.section(f"Throughput with up to {max(states):,} states, {STATES_PER_TX} to a transaction and command")
    await remove_cluster(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    refuse_small_disk(max(states), REPLICAS, shutil.disk_usage(folder.parent).free)
    scale = _Scale(folder, sizes, report)
    try:
        before = await scale.at(0)
        grown = {count: await scale.at(count) for count in states[:-1]}
        compacting: Rates = {}
        grown[states[-1]] = await scale.at(states[-1], compacting)
        after = await scale.at(0)
    finally:
        await remove_cluster(folder)
    empty = {name: fmean((before[name], after[name])) for name in SHAPES}
    report.figures["scale_tps"] = {name: {0: empty[name]} | {n: grown[n][name] for n in grown} for name in SHAPES}
    add_ratios(empty, grown[states[-1]], compacting, report)
    pictures.mkdir(parents=True, exist_ok=True)
    series = {"single requests": "single", "batches of 200": "batch"}
    drawn = {label: {0: empty[name]} | {n: grown[n][name] for n in grown} for label, name in series.items()}
    (pictures / GROWTH_PICTURE).write_text(growth(drawn))
    report.line("drawn", str(pictures / GROWTH_PICTURE))


def add_ratios(empty: Rates, full: Rates, compacting: Mapping[str, float], report: Report) -> None:
    """Rates over those of the empty cluster; `scale_compacting_ratio` is the lower one of the two loads."""
    for name in SHAPES:
        ratio = round(full[name] / empty[name], 3)
        report.add(f"scale_{name}_ratio", ratio, f"{name}, over empty", f"{ratio:.2f}")
    ratios = {name: round(compacting[name] / empty[name], 3) for name in SHAPES}
    report.figures["scale_compacting_ratios"] = ratios
    shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
    report.add("scale_compacting_ratio", min(ratios.values()), "level 0 waits for compaction, over empty", shown)


class _Scale:
    """One cluster after the other, in the same folder."""

    def __init__(self, folder: Path, sizes: Sizes, report: Report) -> None:
        self._folder = folder
        self._sizes = sizes
        self._report = report

    async def at(self, states: int, compacting: Rates | None = None) -> Rates:
        """The rates with so many states; into `compacting` those while level 0 waits for compaction."""
        await remove_cluster(self._folder)
        settings = ClusterSettings(
            folder=self._folder,
            replicas=REPLICAS,
            further={
                "core": {"scrub_records_per_s": 0}
            },  # it would compare the index with a log that made no such rows
        )
        async with LocalCluster(settings) as cluster:
            if "versions" not in self._report.figures:
                await add_conditions(cluster, self._report)
                tell_deployment(cluster, self._report)
            load = LoadGenerator(self._folder / "bodies", cluster.parties)
            await load.warm_up(cluster.config.endpoint, SINGLE, FIRST_LOAD_S)
            await self._fill(cluster, states)
            rates = {name: await self._rate(cluster, load, shape) for name, shape in SHAPES.items()}
            shown = ", ".join(f"{name} {number(rate)} a second" for name, rate in rates.items())
            self._report.line(f"{states:,} states", shown)
            if compacting is not None:
                for name, shape in SHAPES.items():
                    compacting[name] = await self._rate_while_waiting(cluster, load, name, shape, rates[name])
        return rates

    async def _fill(self, cluster: LocalCluster, states: int) -> None:
        await _stop(cluster)
        if states:
            end = (await read_status(cluster.conninfo)).ledger_end
            owner = cluster.postgres.dsn(DATABASE)
            await asyncio.gather(
                asyncio.to_thread(fill_index, self._folder / "tables", states, _indexes(cluster), end),
                asyncio.to_thread(fill_completions, owner, states // STATES_PER_TX),
            )
        await self._evict(cluster)
        if states:
            files = level_files(_indexes(cluster)[0])
            self._report.line("table files by level", ", ".join(f"{level}: {n}" for level, n in files.items()))
        await _start(cluster)

    async def _evict(self, cluster: LocalCluster) -> None:
        database = (cluster.postgres.folder / "data").resolve()
        dropped = await asyncio.to_thread(evict, [self._folder, database])
        self._report.line("dropped from the page cache", f"{dropped / 2**30:.1f} GiB of files")

    async def _rate(self, cluster: LocalCluster, load: LoadGenerator, shape: Shape) -> float:
        endpoint = cluster.config.endpoint
        await load.warm_up(endpoint, shape)
        per_second = await load.warm_up(endpoint, shape)
        results = await load.measure(endpoint, shape, self._sizes.runs, self._sizes.run_s, per_second)
        return median(result.per_second * shape.per_body for result in results)

    async def _rate_while_waiting(
        self, cluster: LocalCluster, load: LoadGenerator, name: str, shape: Shape, expected: float
    ) -> float:
        """The rate of one run that begins right after the replicas do, with many files on level 0."""
        await _stop(cluster)
        for folder in _indexes(cluster):
            await asyncio.to_thread(_pile_up, folder)
        run_s = self._sizes.run_s
        prepared = await load.bodies(
            shape, int(2 * (FIRST_LOAD_S + run_s) * expected / shape.per_body) + shape.connections
        )
        await _start(cluster)
        cores = [replica.pid for replica in cluster.replicas.values()]
        before, used_s = _waiting(_indexes(cluster)[0]), compaction_cpu_s(cores)
        result = await load.once(cluster.config.endpoint, shape, prepared, FIRST_LOAD_S, run_s)
        after, used_s = _waiting(_indexes(cluster)[0]), compaction_cpu_s(cores) - used_s
        rate = result.per_second * shape.per_body
        waited = f"{number(rate)} a second, {before} files on level 0 before, {after} after {run_s:g} s;"
        waited += f" compaction used {used_s / (FIRST_LOAD_S + run_s):.2f} processors"
        self._report.line(f"{name}, level 0 waits for compaction", waited)
        self._report.figures[f"scale_compacting_{name}_files"] = [before, after]
        return rate


def _pile_up(folder: Path) -> None:
    pile_up(folder, WAITING_FILES - _waiting(folder), np.random.default_rng())


def _waiting(folder: Path) -> int:
    return level_files(folder).get(0, 0)


def _indexes(cluster: LocalCluster) -> list[Path]:
    return [cluster.config.replica_dir(name) / "index" for name in cluster.replicas]


async def _stop(cluster: LocalCluster) -> None:
    await wait_until_published(cluster)
    for replica in cluster.replicas.values():
        await replica.stop()


async def _start(cluster: LocalCluster) -> None:
    for replica in cluster.replicas.values():
        replica.start()
    await cluster.wait_for_active(timeout_s=START_MAX_S)
    await wait_for_return(cluster)
