"""The topic is lost under load, and the archive ends before the newest answers: a test of runbooks/topic-loss.md."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from time import monotonic_ns

import pytest

from replica.local.cluster import ClusterSettings
from tests.ends import ends_by_design, none_ends_unasked
from tests.faults.recorder import Scenario
from tests.faults.scenarios import wait_for_return
from tests.faults.tools import notary
from tests.faults.under_load import end_of_log, loaded
from tests.faults.witness import witness
from tests.promises import promised
from tests.runbooks.conftest import staged
from tests.runbooks.stage import Stage

pytestmark = [
    pytest.mark.only_kafka("a salvage is of a topic; elsewhere the archive is restored: runbooks/postgres-log.md"),
    pytest.mark.cluster,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="session"),
]

PAGE = "topic-loss"


@pytest.mark.scenario("F34", "the topic is lost under load, its newest records are in no archive: a tail is salvaged")
async def test_what_a_lost_tail_decided_stays_decided(scenario: Scenario, short_folder: Path) -> None:
    """Goal: every answer holds, and states of the lost tail stay spent. Method: archive, more answers, delete the topic
    under clients, which go on; the runbook; the same states once more, and the check over all answers."""
    settings = ClusterSettings(folder=short_folder / "lost-tail", topics_deletable=True)
    async with staged(settings) as stage:
        with none_ends_unasked(stage.cluster.replicas):
            await lose_and_salvage(stage, scenario)


async def lose_and_salvage(stage: Stage, scenario: Scenario) -> None:
    """The whole story."""
    cluster, variables = stage.cluster, {"REPLICAS": " ".join(stage.cluster.replicas)}
    first_offset = await end_of_log(cluster)
    async with witness(cluster, scenario) as spender:
        async with loaded(cluster, scenario, singles=8, batches=1) as load:
            await spender.spend(100)
            code, printed = await notary(cluster, "archive", "run")
            assert code == 0, printed
            await spender.spend(100)
            end = await end_of_log(cluster)
            with ends_by_design(*cluster.replicas.values()):
                await cluster.kafka.delete_topic(cluster.topic)
                await stage.play(PAGE, "Checks", **variables)
                await stage.play(PAGE, "Steps", "Stop and look", **variables)
            await stage.play(PAGE, "Steps", "A tail is lost", **variables)
            saved = json.loads((cluster.folder / "salvage.json").read_text())
            lost = saved["last"] - saved["first"] + 1
            scenario.fired(f"topic deleted under load: {lost} records lost, {saved['entries']} entries salvaged")
            promised(saved["last"] >= end - 1, f"the salvage ends at {saved['last']}, the log ended at {end}")
            await stage.play(PAGE, "Steps", "Start", **variables)
            back_ns = monotonic_ns()
            await wait_for_return(cluster)
            scenario.fired(f"restored and served again, {saved['accept_loss']} commands accepted as lost")
            promised(await spender.spend_again() == 200, "the witness forgot what it spent")
            await asyncio.sleep(2.0)
        assert load.successes_ns()[-1] > back_ns
    await scenario.audit(cluster, first_offset)
    assert scenario.summary["outcomes"]["LOST"] == lost
