"""Every job on a log with pointers to payloads: real broker and Postgres, as an operator types the commands."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from replica.active.publisher import completions_of
from replica.config.load import load_config
from replica.config.model import Config
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.index.rocks import RocksIndex
from replica.log.kafka.log import KafkaLog
from replica.log.kafka.pointers import payload_topic
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.stretch import read_stretch
from replica.log.kafka.topic import TopicAdmin, create_topic
from replica.notary.rules import STATE_KEY
from replica.notary.salvage import decode_salvage
from tests.pipeline.signed_log import ACTIVATION_2, PARTY, PARTY_KEY, _signed_2, request, tx
from tests.pipeline.test_commands import VALUES, Operator, operator  # noqa: F401
from tests.pipeline.test_salvage_commands import store_of
from tests.worlds.beginning import next_barrier
from tests.worlds.notary_logs import LogMaker

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

LARGE_STATES = 200  # 7 kB
REQUESTS = 8  # each second one is large
LARGE = [request(500 + at, range(1_000 * at, 1_000 * at + LARGE_STATES)) for at in range(1, REQUESTS, 2)]
REGISTERING = LogMaker(activation_id=ACTIVATION_2, sequence=REQUESTS)
REGISTERING.register(PARTY, key=bytes(PARTY_KEY.verify_key))
SPLIT = [
    next_barrier(1_000, ACTIVATION_2),
    *REGISTERING.values,
    *(
        _signed_2(request(500 + at, range(1_000 * at, 1_000 * at + (LARGE_STATES if at % 2 else 2))), at, f"c{at}")
        for at in range(REQUESTS)
    ),
]
WHOLE = [*VALUES, *SPLIT]


def split(operator: Operator) -> Config:  # noqa: F811
    """Set payload partitions for a deployment that has records, create what is missing, and append by the writer."""
    text = operator.config.read_text()
    operator.config.write_text(text.replace("single_broker = true", "single_broker = true\npayload_partitions = 2"))
    created = operator.types("topic", "create", "--to-restore")
    assert created.exit_code == 0, created.output + repr(created.exception)
    config = load_config(operator.config)
    asyncio.run(_append(kafka(config)))
    return config


def kafka(config: Config) -> KafkaSettings:
    settings = config.log.settings
    assert isinstance(settings, KafkaSettings)
    return settings


async def _append(settings: KafkaSettings) -> None:
    """One after the other, so that their order is known."""
    log, admin = KafkaLog(settings), TopicAdmin(settings)
    try:
        writer, reader = await log.open_writer(), await log.open_reader(len(VALUES))
        for value in SPLIT:
            writer.append(value)
            async with asyncio.timeout(20):
                while not (found := await reader.read(1, 1.0)):
                    pass
            assert found[0][1] == value
        ends = [await admin.end_of(payload_topic(settings.topic), partition) for partition in range(2)]
        assert sum(ends) == REQUESTS // 2
    finally:
        await log.close()
        await admin.close()


def in_topic(settings: KafkaSettings) -> list[bytes | None]:
    return [value for batch in read_stretch(settings, 0, len(WHOLE)) for value in batch.values]


def test_every_job_reads_whole_records_and_a_restored_log_needs_no_payloads(
    operator: Operator,  # noqa: F811
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    """Goal: nobody above the log sees a pointer. Method: split topics on a deployment with records; archive with the
    connector that is chosen by itself, verify, audit, trace, rebuild; then delete the payloads, and the jobs name
    what is missing, also once their topic is there again, empty; then delete both, and restore."""
    config = split(operator)
    settings = kafka(config)
    assert in_topic(settings) == WHOLE
    assert operator.told("archive", "run")["archived_now"] == len(WHOLE)
    assert operator.told("archive", "verify")["findings"] == []

    audited = operator.types("audit", "--no-database", "--json")
    assert "LOG_PAYLOAD" not in audited.output and json.loads(audited.output[audited.output.index("{") :])
    traced = operator.types("trace", "tx", tx(501).hex())
    assert traced.exit_code == 0 and tx(501).hex() in traced.output, traced.output + repr(traced.exception)

    judged = MemoryIndex()
    Applier(judged, "any").apply(list(enumerate(WHOLE)))
    for source in ("topic", "archive"):
        made = operator.types("index", "rebuild", "--name", "r1", "--engine", "spark", "--log", source)
        assert made.exit_code == 0, made.output + repr(made.exception)
        index = RocksIndex(config.replica_dir("r1") / "index")
        assert dict(index.entries()) == dict(judged.entries())
        index.close()

    lost = payload_topic(settings.topic)
    asyncio.run(operator.kafka.delete_topic(lost))
    assert_jobs_refuse(operator, f"TOPIC_UNSAFE: topic {settings.topic}: topic {lost} is not there")
    assert operator.types("topic", "create", "--to-restore").exit_code == 0
    assert_jobs_refuse(operator, "LOG_PAYLOAD_MISSING")
    for name in settings.topics:
        asyncio.run(operator.kafka.delete_topic(name))
    evidence = tmp_path / "evidence.json"
    operator.told("restore", "run", "--evidence", str(evidence))
    found = json.loads(evidence.read_text())
    assert found["restored_root"] == found["archived_root"]
    assert in_topic(settings) == WHOLE
    assert asyncio.run(_payload_ends(settings)) == [
        0,
        0,
    ]  # the restored log is whole, and the next writer has its topic
    assert operator.types("topic", "check").exit_code == 0


def assert_jobs_refuse(operator: Operator, what: str) -> None:  # noqa: F811
    """No job takes records without their bodies for the log."""
    for job in (
        ["audit", "--no-database"],
        ["index", "rebuild", "--name", "r1", "--engine", "spark", "--log", "topic"],
    ):
        refused = operator.types(*job)
        assert refused.exit_code != 0, refused.output
        assert what in f"{refused.exception!r} {refused.output}", refused.output + repr(refused.exception)


async def _payload_ends(settings: KafkaSettings) -> list[int]:
    admin = TopicAdmin(settings)
    try:
        return [await admin.end_of(payload_topic(settings.topic), partition) for partition in range(2)]
    finally:
        await admin.close()


def test_a_lost_tail_of_large_requests_is_salvaged(operator: Operator, tmp_path: Path) -> None:  # noqa: F811
    """Goal: what large requests decided is not decided again. Method: archive before the split, apply and publish after
    it, delete both topics; salvage and restore."""
    assert operator.told("archive", "run")["archived_now"] == len(VALUES)
    config = split(operator)
    settings = kafka(config)
    topic_id, folder = asyncio.run(create_topic(settings)), config.replica_dir("r1")
    folder.mkdir(parents=True)
    index = RocksIndex(folder / "index")
    applied = Applier(index, topic_id).apply(list(enumerate(WHOLE)))
    index.close()

    async def publish() -> None:
        async with store_of(config) as store:
            await store.bind(topic_id)
            await store.published()
            await store.publish(completions_of(applied), applied.position)

    asyncio.run(publish())
    for name in settings.topics:
        asyncio.run(operator.kafka.delete_topic(name))
    file = tmp_path / "tail.salvage"
    saved = operator.told("log", "salvage", "--to", str(file))
    assert (saved["first"], saved["last"], saved["accept_loss"]) == (len(VALUES), len(WHOLE) - 1, 0)
    accepted = ("--salvage", str(file), "--accept-loss", "0")
    operator.told("restore", "run", *accepted, "--evidence", str(tmp_path / "evidence"))
    salvage = decode_salvage(file.read_bytes())
    assert in_topic(settings) == [*VALUES, *map(salvage.lost_record, range(len(VALUES), len(WHOLE)))]
    spent = {entry.key for entry in salvage.entries()}
    assert {STATE_KEY + state for one in LARGE for state in one.inputs} <= spent
