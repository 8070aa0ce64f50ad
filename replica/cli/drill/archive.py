"""The loss of a site that has only an archive elsewhere: everything is destroyed, and restored from the second site.

Every step runs the operator's command, in a process of its own.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic, time_ns

from replica.checker.history import HistoryWriter
from replica.cli.common import DATA_FOLDER, say
from replica.cli.demo.phases import PhaseResult, Phases
from replica.cli.demo.requests import DemoRequest, find_requests
from replica.cli.drill.report import DrillReport
from replica.cli.steps import notary
from replica.local.cluster import LOG_FOLDER, ClusterSettings, LocalCluster, remove_cluster
from replica.local.postgres import PostgresServer
from replica.local.process import ServerFailed
from replica.local.recording import RecordingClient
from replica.notary.answers import Refused
from replica.notary.codes import Code
from replica.notary.secret_files import open_not_for_others
from replica.store.postgres.status import read_status

FOLDER = DATA_FOLDER / "drill"
SITE = DATA_FOLDER / "drill-second-site"
REQUESTS_MAX = 1_200
LOST_EVERY = 6  # the last sixth of the requests comes after the last copy, so that there is something to lose


class Restored(LocalCluster):
    """A cluster whose log comes from the second site, and whose first replica's index does."""

    steps_s: dict[str, float]

    async def prepare_log(self) -> str:
        """Restore the topic, seed an index, take the archive back and go on with it."""
        self.steps_s = {}
        config = ("--config", str(self.config_path))
        source = ("--folder", str(SITE / "archive"))
        evidence = str(self.folder / "restore.json")
        await self._step("restore", "restore", "run", *source, "--offline", "--evidence", evidence, *config)
        newest = max((SITE / "checkpoints").iterdir())
        await self._step("seed", "recovery", "seed", str(newest), "--name", "r1", *source, *config)
        await self._step("take back", "recovery", "copy", *source, "--to", str(self.config.archive.folder), *config)
        await self._step("adopt", "restore", "adopt", *config)
        return await super().prepare_log()

    async def _step(self, title: str, *words: str) -> None:
        began_s = monotonic()
        await notary(*words)
        self.steps_s[title] = monotonic() - began_s
        say("recovery", f"{title}: {self.steps_s[title]:.1f} s")


class Drill:
    """One drill, from an empty folder to a report. Leaves the recovered cluster stopped, in data/drill."""

    def __init__(self) -> None:
        self._settings = ClusterSettings(folder=FOLDER)
        requests = list(find_requests(None).requests)[:REQUESTS_MAX]
        lost = max(1, len(requests) // LOST_EVERY)
        self._archived, self._lost = requests[:-lost], requests[-lost:]
        self._offsets: dict[bytes, int] = {}

    async def run(self) -> DrillReport:
        """Raises NotaryError when a step fails."""
        await remove_cluster(FOLDER)
        shutil.rmtree(SITE, ignore_errors=True)
        async with LocalCluster(self._settings, say) as cluster:
            archived_us, end = await self._live(cluster)
        lost_us = time_ns() // 1_000
        began_s = monotonic()
        await self._destroy()
        restored = Restored(self._settings, say)
        async with restored:
            took_s = monotonic() - began_s
            return await self._judge(restored, end, (lost_us - archived_us) / 1e6, took_s)

    async def _live(self, cluster: LocalCluster) -> tuple[int, int]:
        """Run the cluster before the loss. Returns the last copy's time (microseconds UTC), and the log's end."""
        config = ("--config", str(cluster.config_path))
        half = len(self._archived) // 2
        await self._notarise(cluster, self._archived[:half])
        await _archive(*config)
        await self._ship_checkpoint(cluster, config)
        await self._notarise(cluster, self._archived[half:])
        await _archive(*config)
        await notary("recovery", "copy", "--to", str(SITE / "archive"), *config)
        archived_us = time_ns() // 1_000
        say("drill", f"{len(self._archived):,} transactions are archived and copied; {len(self._lost):,} more follow")
        await self._notarise(cluster, self._lost)
        active = await cluster.wait_for_active()
        health = (await cluster.healths())[active.name]
        return archived_us, -1 if health is None else health.applied_offset

    async def _ship_checkpoint(self, cluster: LocalCluster, config: tuple[str, str]) -> None:
        passive = (await cluster.passives())[0]
        await passive.stop()
        checkpoint = str(FOLDER / "checkpoint")
        await notary("index", "checkpoint", checkpoint, "--name", passive.name, *config)
        await notary("recovery", "ship", checkpoint, "--to", str(SITE / "checkpoints"), *config)
        passive.start()
        await cluster.wait_until_ready([passive.name])
        say("drill", f"a checkpoint of {passive.name}'s index was shipped")

    async def _destroy(self) -> None:
        """Delete everything at the site but configuration and keys, which operators keep elsewhere."""
        await PostgresServer(FOLDER / "postgres", 1).remove()  # its data may be elsewhere; the port is not used
        for name in (LOG_FOLDER, "replicas", "archive", "postgres", "haproxy"):
            shutil.rmtree(FOLDER / name, ignore_errors=True)
        say("drill", "database, log, indexes and archive of the site are deleted")

    async def _notarise(self, cluster: LocalCluster, requests: Sequence[DemoRequest]) -> None:
        async with self._client(cluster) as client:
            phases = Phases(client, cluster.parties, requests)
            _refuse_wrong(await phases.notarise(say))
            self._offsets |= phases.offsets

    async def _judge(self, cluster: Restored, end: int, point_s: float, took_s: float) -> DrillReport:
        async with self._client(cluster) as client:
            phases = Phases(client, cluster.parties, self._archived)
            phases.offsets = self._offsets
            kept = await phases.look_up(say)
            protected = await phases.double_spend(say)
            spending = sum(bool(request.inputs) for request in self._archived)
            gone = [await client.look_up(request.tx_id) for request in self._lost]
        archived = max(self._offsets[request.tx_id] for request in self._archived)
        status = await read_status(cluster.conninfo)
        await _archive("--config", str(cluster.config_path))
        not_found = Code.TX_NOT_FOUND.name
        lost = sum(isinstance(answer, Refused) and answer.code == not_found for answer in gone)
        return DrillReport(
            covered=len(self._archived),
            kept=kept.expected,
            protected=protected.expected + len(self._archived) - spending,
            lost=lost,
            lost_found=len(gone) - lost,
            completions=status.ledger_end,
            recovery_point_records=end - archived,
            recovery_point_s=point_s,
            recovery_time_s=took_s,
            steps_s=cluster.steps_s | {"servers and replicas": took_s - sum(cluster.steps_s.values())},
        )

    @asynccontextmanager
    async def _client(self, cluster: LocalCluster) -> AsyncIterator[RecordingClient]:
        with open_not_for_others(FOLDER / "history.jsonl", "ab") as stream:
            async with RecordingClient(cluster.endpoint, HistoryWriter(stream), f"drill-{time_ns()}") as client:
                yield client


def _refuse_wrong(phase: PhaseResult) -> None:
    if not phase.clean:
        raise ServerFailed(f"{phase.count - phase.expected} of {phase.count} were not notarised: {phase.wrong[:1]}")


async def _archive(*config: str) -> None:
    """Archive what is new, without Spark: there is little of it."""
    await notary("archive", "run", "--engine", "process", *config)
