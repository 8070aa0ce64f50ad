"""The runbook of a log that ends before what was answered, on a broker whose disk lost the end of the topic."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from pipeline.sources.topic import look_at, value_at
from replica.config.load import load_config
from replica.local.cluster import ClusterSettings
from tests.faults.audit import audit
from tests.runbooks.conftest import staged, under_load
from tests.runbooks.stage import Stage
from tests.runbooks.test_losses import forget_the_salvage, history_before, spent_again

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(1_200),
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

BATCH_HEAD_BYTES = 12  # of a record batch on disk: its first offset (8), the bytes that follow (4)


class Scene(NamedTuple):
    """A cluster whose log was cut; the clients' histories before the archive's end and after it."""

    stage: Stage
    histories: list[Path]


@asynccontextmanager
async def cut(folder: Path) -> AsyncIterator[Scene]:
    """Archive, go on under load, kill the broker; its disk loses half of what the archive does not have."""
    async with staged(ClusterSettings(folder=folder)) as stage:
        cluster = stage.cluster
        archived = await history_before(stage)
        kept_to = await end_of(stage)
        async with under_load(stage, "unarchived") as load:
            await asyncio.sleep(4.0)
        end = await end_of(stage)
        (broker,) = cluster.kafka.brokers
        for replica in cluster.replicas.values():
            await replica.stop()
        await broker.process.kill()
        shorten(broker.folder / "data", cluster.topic, (kept_to + end) // 2)
        await cluster.kafka.start()
        left = await end_of(stage)
        assert kept_to < left < end - 10, (kept_to, left, end)
        yield Scene(stage, [archived, load.history])


async def end_of(stage: Stage) -> int:
    """The offset after the log's last record."""
    return (await asyncio.to_thread(look_at, stage.cluster.config.log.settings)).end


def shorten(data: Path, topic: str, end: int) -> None:
    """Take away a topic's records from about offset `end` on, as a disk does that never wrote them."""
    segment = max((data / f"{topic}-0").glob("*.log"))
    raw, at = segment.read_bytes(), 0
    while int.from_bytes(raw[at : at + 8], "big") < end:
        at += BATCH_HEAD_BYTES + int.from_bytes(raw[at + 8 : at + BATCH_HEAD_BYTES], "big")
    with segment.open("r+b") as file:
        file.truncate(at)
    for derived in (*segment.parent.glob("*index"), *segment.parent.glob("*.snapshot")):
        derived.unlink()
    (data / ".kafka_cleanshutdown").unlink(missing_ok=True)


@pytest.mark.only_kafka("the disk of a broker; other kinds of log: tests/pipeline/test_log_fill.py")
async def test_log_cut(folder: Path) -> None:
    """Goal: what the log lost stays notarised and spent, at its offsets, and the log goes on. Method: play; check
    every answer ever given; spend states of the lost range again; a replica without the file does not serve."""
    async with cut(folder / "log-cut") as (stage, histories):
        cluster = stage.cluster
        variables = {"REPLICAS": " ".join(cluster.replicas)}
        await stage.play("log-cut", "Checks", **variables)
        await stage.play("log-cut", "Steps", "Stop and look", **variables)
        saved = json.loads((cluster.folder / "salvage.json").read_text())
        assert (saved["entries"] > 20, saved["accept_loss"]) == (True, 0), saved
        await stage.play("log-cut", "Steps", "The log just ends earlier", **variables)
        await stage.play("log-cut", "Steps", "Start", **variables)
        await stage.play("log-cut", "Verification", **variables)
        summary = await audit(cluster, histories)
        assert summary["outcomes"]["LOST"] == saved["last"] - saved["first"] + 1
        assert await spent_again(stage, histories[-1], saved["first"]) > 10
        async with under_load(stage, "after"):
            await asyncio.sleep(5.0)
        await forget_the_salvage(stage)
    stage.assert_all_played("log-cut", elsewhere="The log has grown again")


@pytest.mark.only_kafka("the disk of a broker; other kinds of log: tests/pipeline/test_log_fill.py")
async def test_log_cut_that_grew_again(folder: Path) -> None:
    """Goal: records that came after the cut take nobody's place. Method: the log gets others, then play: the command
    refuses it and names the last offset; all answers hold in the log that goes on."""
    async with cut(folder / "grown") as (stage, histories):
        cluster = stage.cluster
        log = cluster.config.log.settings
        producer = Producer({"bootstrap.servers": cluster.kafka.bootstrap_servers})
        for offset in range(20, 30):
            producer.produce(cluster.topic, await asyncio.to_thread(value_at, log, offset), partition=0)
        assert producer.flush(20) == 0
        printed = await stage.play("log-cut", "Steps", "Stop and look", REPLICAS=" ".join(cluster.replicas))
        (last,) = re.findall(r"--until-offset\s+(\d+)", printed)
        another = cluster.folder / "another.toml"
        here = rf'(?m)^#? *topic = "{cluster.topic}"'
        text, found = re.subn(here, 'topic = "another"', cluster.config_path.read_text())
        assert found == 1
        another.write_text(text)
        variables = {"REPLICAS": " ".join(cluster.replicas), "ANOTHER": str(another), "LAST": last}
        await stage.play("log-cut", "Steps", "The log has grown again", **variables)
        saved = json.loads((cluster.folder / "salvage.json").read_text())
        assert (saved["entries"] > 20, saved["accept_loss"]) == (True, 0), saved
        cluster.config = load_config(cluster.config_path)
        await stage.play("log-cut", "Steps", "Start", **variables)
        await stage.play("log-cut", "Verification", **variables)
        await audit(cluster, histories)
        assert await spent_again(stage, histories[-1], saved["first"]) > 10
