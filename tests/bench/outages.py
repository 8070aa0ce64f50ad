"""Fail-over under load, with a long log: how long nobody is served, and that nothing is lost, changed or double."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any, Literal

from replica.local.cluster import ClusterSettings, LocalCluster, remove_cluster
from replica.local.replica import ReplicaProcess
from replica.log.open import open_log
from replica.store.postgres.status import read_status
from tests.bench.filler import fill_log
from tests.bench.load import INPUTS
from tests.bench.report import Report, number
from tests.bench.sizes import Sizes
from tests.bench.usage import memory_mib, parts_of
from tests.faults.audit import audit
from tests.faults.load import ClientLoad, client_load
from tests.faults.scenarios import (
    FREEZE_CORE,
    FREEZE_GROUP,
    KILL_CORE,
    KILL_GROUP,
    STOP,
    TakeOver,
    fail_over,
    freeze_beyond_lease,
    wait_for_return,
)

Standby = Literal["following", "disconnected"]
REPLICAS = 3
CATCH_UP_MAX_S = 900.0
LOOK_INTERVAL_S = 0.02


async def measure_fail_over(folder: Path, sizes: Sizes, report: Report) -> None:
    """With passives that follow: catching up, memory, kills, graceful stops, freezes. Raises Violation."""
    report.section(f"Fail-over, {REPLICAS} replicas, passives following, a log of {sizes.log_records:,} records")
    async with _filled_cluster(folder, "following", sizes) as cluster:
        await _measure_memory(cluster, report)
        await catch_up(cluster, report)
        await _Run(cluster, report).following(sizes)


async def measure_disconnected(folder: Path, sizes: Sizes, report: Report) -> None:
    """With passives that stay away from the log and read what they missed when they take over. Raises Violation."""
    report.section(f"Fail-over, {REPLICAS} replicas, passives disconnected, a log of {sizes.log_records:,} records")
    async with _filled_cluster(folder, "disconnected", sizes) as cluster:
        await _let_each_lead(cluster)
        await _Run(cluster, report).disconnected(sizes)


class _filled_cluster:
    """A cluster whose log was filled while no replica ran, once one of them serves and all others are ready."""

    def __init__(self, folder: Path, standby: Standby, sizes: Sizes) -> None:
        self._folder = folder
        self._cluster = LocalCluster(ClusterSettings(folder=folder, replicas=REPLICAS, standby=standby))
        self._records = sizes.log_records

    async def __aenter__(self) -> LocalCluster:
        await remove_cluster(self._folder)
        cluster = await self._cluster.__aenter__()
        try:
            for replica in cluster.replicas.values():
                await replica.stop()
            epoch = (await read_status(cluster.conninfo)).epoch + 1
            await asyncio.to_thread(fill_log, cluster.kafka_settings, epoch, self._records, INPUTS, cluster.parties[0])
            for replica in cluster.replicas.values():
                replica.start()
            await cluster.wait_for_active(timeout_s=CATCH_UP_MAX_S)
            await wait_for_return(cluster)
            if (await read_status(cluster.conninfo)).ledger_end < self._records:
                raise RuntimeError("the records that the log was filled with do not count")
        except BaseException:
            await self._cluster.stop()
            raise
        return cluster

    async def __aexit__(self, *_: object) -> None:
        await self._cluster.stop()


class _Run:
    """Faults one after the other, under one load, and one audit of everything at the end."""

    def __init__(self, cluster: LocalCluster, report: Report) -> None:
        self._cluster = cluster
        self._report = report

    async def following(self, sizes: Sizes) -> None:
        """Every kind of fault."""
        first_offset, load = await self._begin()
        kills = await self._kills(sizes.kills)
        stops = [await fail_over(self._cluster, STOP) for _ in range(sizes.stops)]
        thawed: dict[str, list[TakeOver]] = {"core": [], "group": []}
        histories = [load.history]
        for number_ in range(sizes.freezes):
            for name, fault in (("core", FREEZE_CORE), ("group", FREEZE_GROUP)):
                take_over, direct = await freeze_beyond_lease(self._cluster, fault, f"zombie-{name}-{number_}")
                thawed[name].append(take_over)
                histories.append(direct.history)
        summary = await self._end(load, histories, first_offset)
        self._tell_kills("kill", kills, load)
        self._tell_activations(kills)
        self._tell("graceful_stop_outage_s", "graceful stop, outage", stops, load)
        for name, take_overs in thawed.items():
            self._tell(f"frozen_{name}_outage_s", f"SIGSTOP of the {name} beyond the lease, outage", take_overs, load)
        claims = sum(take_over.zombie_claims for take_overs in thawed.values() for take_over in take_overs)
        self._report.add("zombie_claims", claims, "thawed replicas that called themselves active", str(claims))
        self._tell_audit("fail_over", summary)

    async def disconnected(self, sizes: Sizes) -> None:
        """Kills alone."""
        first_offset, load = await self._begin()
        kills = await self._kills(sizes.kills_disconnected)
        summary = await self._end(load, [load.history], first_offset)
        self._tell_kills("disconnected_kill", kills, load)
        self._tell_audit("disconnected", summary)

    async def _begin(self) -> tuple[int, ClientLoad]:
        log = open_log(self._cluster.config.log.settings)
        first_offset = await log.end_offset()
        await log.close()
        load = client_load(self._cluster, "clients")
        load.start()
        return first_offset, load

    async def _kills(self, count: int) -> list[TakeOver]:
        """Alternately the whole process group and the core alone."""
        return [await fail_over(self._cluster, KILL_CORE if at % 2 else KILL_GROUP) for at in range(count)]

    async def _end(self, load: ClientLoad, histories: Sequence[Path], first_offset: int) -> dict[str, Any]:
        await load.stop()
        return await audit(self._cluster, histories, first_offset)

    # ---- reporting ----

    def _tell_kills(self, name: str, kills: list[TakeOver], load: ClientLoad) -> None:
        outages_s = self._tell(f"{name}_outage_s", f"{len(kills)} times SIGKILL, outage", kills, load)
        for at, part in enumerate(("whole group", "core alone")):
            shown = " ".join(f"{outage_s:.2f}" for outage_s in outages_s[at::2])
            self._report.line(f"  {part}", f"{shown} s")

    def _tell(self, name: str, label: str, take_overs: list[TakeOver], load: ClientLoad) -> list[float]:
        """Median, worst and each outage; returns them in their order."""
        outages_s = [round(take_over.outage(load).outage_s, 3) for take_over in take_overs]
        self._report.figures[f"{name}_each"] = outages_s
        self._report.figures[f"{name}_median"] = round(median(outages_s), 3)
        worst_s = max(outages_s)
        self._report.add(f"{name}_max", worst_s, label, f"median {median(outages_s):.2f} s, worst {worst_s:.2f} s")
        return outages_s

    def _tell_activations(self, take_overs: list[TakeOver]) -> None:
        """The median of each step of the activations."""
        activations = [take_over.activation_steps_s for take_over in take_overs if take_over.activation_steps_s]
        if activations:
            steps_ms = {step: round(1_000 * median(a[step] for a in activations), 1) for step in activations[0]}
            shown = ", ".join(f"{step} {took_ms:g}" for step, took_ms in steps_ms.items())
            text = f"{shown}: together {sum(steps_ms.values()):.0f} ms"
            self._report.add("activation_steps_ms", steps_ms, "activation, median of each step", text)

    def _tell_audit(self, name: str, summary: dict[str, Any]) -> None:
        answers = ", ".join(f"{count:,} {code}" for code, count in sorted(summary["answers"].items()))
        checked = f"{summary['operations']:,} operations ({answers})"
        self._report.add(f"{name}_audit", summary, "checked, nothing lost, changed or double", checked)
        voids = ", ".join(f"{count} {reason}" for reason, count in summary["voids"].items()) or "none"
        self._report.line("void records, epochs", f"{voids}; {len(summary['epochs'])} epochs")


async def _let_each_lead(cluster: LocalCluster) -> None:
    """Every replica leads once, so that each has read the log so far."""
    led = {(await cluster.wait_for_active()).name}
    while led < set(cluster.replicas):
        active = await cluster.wait_for_active()
        active.terminate()
        successor = await cluster.wait_for_active(other_than=active.name, timeout_s=CATCH_UP_MAX_S)
        led.add(successor.name)
        await wait_for_return(cluster)


async def _measure_memory(cluster: LocalCluster, report: Report) -> None:
    """The memory of each part behind a long log."""
    memory = memory_mib(await parts_of(cluster))
    shown = ", ".join(f"{part} {size:.0f}" for part, size in memory.items())
    report.add("memory_mib", memory, "memory, proportional set size", f"{shown} MiB")


async def catch_up(cluster: LocalCluster, report: Report) -> None:
    """A passive is stopped, its index deleted, and started again; nobody submits meanwhile."""
    replica = (await cluster.passives())[0]
    await replica.stop()
    shutil.rmtree(cluster.config.replica_dir(replica.name) / "index")
    replica.start()
    first_offset = await _applied(cluster, replica, 1)
    began_s = monotonic()
    active = await cluster.wait_for_active()
    end_offset = await _applied(cluster, active, 1)
    last_offset = await _applied(cluster, replica, end_offset)
    rate = (last_offset - first_offset) / max(monotonic() - began_s, LOOK_INTERVAL_S)
    await wait_for_return(cluster)
    report.add("catch_up_records_per_s", round(rate), "catching up from an empty index", f"{number(rate)} records/s")


async def _applied(cluster: LocalCluster, replica: ReplicaProcess, at_least: int) -> int:
    """The offset that a replica has applied, once it is so high."""
    async with asyncio.timeout(CATCH_UP_MAX_S):
        while True:
            health = (await cluster.healths())[replica.name]
            if health is not None and health.applied_offset >= at_least:
                return health.applied_offset
            await asyncio.sleep(LOOK_INTERVAL_S)
