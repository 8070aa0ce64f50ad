"""Tools that scenarios share: a replica's log lines, its index, the command line."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from replica.index.quarantine import quarantined
from replica.index.rocks import verify_index
from replica.index.summary import IndexSummary
from replica.local.cluster import LocalCluster
from replica.local.replica import ReplicaProcess
from replica.notary.leases import is_leased
from tests.closing import ended
from tests.faults.scenarios import RETURN_MAX_S, wait_for_return
from tests.model.runs import judge, lines_in
from tests.promises import promised
from tests.waiting import eventually

SAY_MAX_S = 90.0
COMMAND_MAX_S = 240.0


class Words:
    """What a replica logs from now on."""

    def __init__(self, replica: ReplicaProcess) -> None:
        self._path = replica.log_path
        self._start = self._path.stat().st_size if self._path.exists() else 0

    def text(self) -> str:
        """All of it."""
        with self._path.open("rb") as file:
            file.seek(self._start)
            return file.read().decode(errors="replace")

    async def come(self, word: str, timeout_s: float = SAY_MAX_S) -> None:
        """Wait until a text appears. Raises AssertionError with the output instead."""

        async def said() -> bool:
            return word in self.text()

        try:
            await eventually(said, timeout_s)
        except TimeoutError:
            raise AssertionError(f"no {word!r} within {timeout_s:g} s in\n{self.text()[-3_000:]}") from None


def index_of(cluster: LocalCluster, replica: ReplicaProcess) -> Path:
    """Where a replica keeps its index."""
    return cluster.config.replica_dir(replica.name) / "index"


def forget_quarantined(cluster: LocalCluster) -> None:
    """Delete the evidence, as the runbook has it."""
    for replica in cluster.replicas.values():
        for folder in quarantined(index_of(cluster, replica)):
            shutil.rmtree(folder)


async def assert_same_indexes(cluster: LocalCluster) -> IndexSummary:
    """Stop the passives at the log's end, compare all entries of their indexes, and start them; returns the summary.

    No client may write to the log meanwhile. The holder of a lease goes on showing life: that moves positions only.
    """
    newest = max(await _applied_by_all(cluster))
    await eventually(lambda: _all_have_applied(cluster, newest), RETURN_MAX_S)
    passives = await cluster.passives()
    await asyncio.gather(*(replica.stop() for replica in passives))
    summaries = [await asyncio.to_thread(verify_index, index_of(cluster, replica)) for replica in passives]
    for replica in passives:
        replica.start()
    await wait_for_return(cluster)
    assert len(summaries) > 1
    compared = [
        replace(summary, position=None)
        if summary.position is not None and is_leased(summary.position.barrier)
        else summary
        for summary in summaries
    ]
    promised(all(summary == compared[0] for summary in compared), summaries)
    return summaries[0]


async def _all_have_applied(cluster: LocalCluster, offset: int) -> bool:
    return min(await _applied_by_all(cluster)) >= offset


async def _applied_by_all(cluster: LocalCluster) -> list[int]:
    """The newest applied offset of each replica; -1 of one that does not answer."""
    healths = (await cluster.healths()).values()
    return [-1 if health is None else health.applied_offset for health in healths]


async def notary(cluster: LocalCluster, *words: str, timeout_s: float = COMMAND_MAX_S) -> tuple[int, str]:
    """A command of the command line: its exit code, and what it printed."""
    argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(cluster.config_path)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        async with asyncio.timeout(timeout_s):
            printed, _ = await process.communicate()
    except TimeoutError:
        await ended(process)
        raise AssertionError(f"notary {' '.join(words)} took longer than {timeout_s:g} s") from None
    return process.returncode or 0, printed.decode()


async def refused_by_all(cluster: LocalCluster, code: str) -> None:
    """Start every replica, and see each refuse the log for this reason and stay down."""
    words = {replica: Words(replica) for replica in cluster.replicas.values()}
    for replica in words:
        replica.start()
    await all_end(words, code)


async def all_end(words: Mapping[ReplicaProcess, Words], code: str) -> None:
    """Wait until each replica has logged this code and ended, and check that none is started again."""
    for replica, said in words.items():
        await said.come(f'"code": "{code}"')
        async with asyncio.timeout(30.0):
            while replica.running:
                await asyncio.sleep(0.05)
    await asyncio.sleep(2 * max(replica.restart_pause_s for replica in words))
    assert not any(replica.running for replica in words)


async def stop_replicas(cluster: LocalCluster) -> None:
    """All together, in order."""
    await asyncio.gather(*(replica.stop() for replica in cluster.replicas.values()))


async def start_replicas(cluster: LocalCluster) -> None:
    """Start them; returns once all are there."""
    for replica in cluster.replicas.values():
        replica.start()
    await wait_for_return(cluster)


async def audited_by_spark(cluster: LocalCluster) -> dict[str, Any]:
    """What `notary audit` finds in the whole log. Raises AssertionError when anything is wrong."""
    code, printed = await notary(cluster, "audit", "--json")
    assert code == 0, printed
    return document_in(printed)


async def doctor(cluster: LocalCluster) -> dict[str, str]:
    """The problems that `notary doctor` found, by check. Raises AssertionError if its exit code disagrees."""
    code, printed = await notary(cluster, "doctor", "--json")
    found = {one["check"]: one["text"] for one in document_in(printed)["findings"] if one["severity"] == "problem"}
    assert code == bool(found), (code, found)
    return found


def document_in(printed: str) -> dict[str, Any]:
    """The JSON among a command's words."""
    document: dict[str, Any] = json.loads(printed[printed.index("{") : printed.rindex("}") + 1])
    return document


def samples(replica: ReplicaProcess, metric: str) -> list[Sample]:
    """A replica's values of a metric, one for each label. Blocks for a moment."""
    with urlopen(f"http://{replica.address.host}:{replica.address.health_port}/metrics") as answer:
        families = list(text_string_to_metric_families(answer.read().decode()))
    return [sample for family in families for sample in family.samples if sample.name == metric]


def the_protocol_allows(cluster: LocalCluster) -> None:
    """Ask the model whether the protocol allows all that the replicas of a cluster said since its first start.

    The model has a lock of a database. Under a lease a claim is in the log before its replica is told: not asked.
    """
    if cluster.config.election.kind == "lease":
        return
    verdict = judge(lines_in(replica.log_path for replica in cluster.replicas.values()))
    promised(verdict.refused is None, verdict)
    assert verdict.allowed > 2 * len(cluster.replicas), verdict


async def hand_over_to(cluster: LocalCluster, target: ReplicaProcess) -> None:
    """Make a replica the active one, whichever is now."""
    active = await cluster.wait_for_active()
    if active is not target:
        code, printed = await notary(cluster, "switchover", "--to", target.name)
        assert code == 0, printed
    assert await cluster.wait_for_active() is target
