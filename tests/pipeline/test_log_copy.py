"""A second site's log: exact bytes at the same offsets, whatever is killed when, and nobody else's records."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from pipeline.archive.segment import records_of
from pipeline.log_copy import LogCopier, end_of, follow_copy, lag_s
from pipeline.metrics import metrics_of
from pipeline.sources.stretch import read_stretch
from pipeline.sources.topic import look_at
from replica.active.signer import create_key
from replica.cli.main import app
from replica.config.file import render_config
from replica.config.load import load_config
from replica.local.kafka import KafkaCluster
from replica.log.admin import StoredRecord
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from replica.log.open import refill_log
from replica.log.postgres.install import install
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.settings import LogSettings
from replica.notary.errors import ConfigError, LogCopyRefused, RestoreRefused
from tests.integration.conftest import MakeDatabase
from tests.pipeline.killed_job import killed_at
from tests.worlds.archive_world import some_log

pytestmark = [pytest.mark.kafka, pytest.mark.postgres]

VALUES = some_log(6)
_numbers = count(1)


@dataclass
class Sites:
    """A broker with the log and its copies, and a way to new databases."""

    servers: str
    make_database: MakeDatabase

    def topic(self) -> KafkaSettings:
        """A topic that is not there yet."""
        return KafkaSettings(bootstrap_servers=self.servers, topic=f"log-copy-{next(_numbers)}", single_broker=True)

    def log(self, values: list[bytes] = VALUES) -> KafkaSettings:
        """A topic with these records."""
        settings = self.topic()
        asyncio.run(create_topic(settings))
        self.append(settings, values)
        return settings

    def append(self, settings: KafkaSettings, values: list[bytes], **further: Any) -> None:
        producer = Producer({"bootstrap.servers": self.servers})
        for value in values:
            producer.produce(settings.topic, value, partition=0, **further)
        assert producer.flush(20) == 0

    def postgres(self) -> PostgresLogSettings:
        """A log on Postgres, without records."""

        async def make() -> str:
            dsn = await self.make_database()
            await install(dsn)
            return dsn

        return PostgresLogSettings(conninfo=asyncio.run(make()), single_server=True)


@pytest.fixture
def sites(kafka_broker: KafkaCluster, make_database: MakeDatabase) -> Sites:
    return Sites(kafka_broker.bootstrap_servers, make_database)


def records(settings: LogSettings) -> list[StoredRecord]:
    """All that the log has, times, keys and headers included."""
    return [record for batch in read_stretch(settings, 0, look_at(settings).end) for record in records_of(batch)]


def copied(source: LogSettings, target: LogSettings, *, goes_on: bool = False) -> int:
    """The number of records that a new copier copies."""
    copier = LogCopier(source, target, lambda _: None)
    copier.open()
    return copier.copy(lambda end: None, goes_on=goes_on)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["kafka", "postgres"])
def test_a_copy_that_ended_after_any_record_goes_on(sites: Sites, kind: str) -> None:
    """Goal: no gap, no repeat. Method: for each number of records that a killed copy may leave: that copy, then another
    one goes on; all records are compared with the log's, their times included."""
    source = sites.log()
    log = records(source)
    for left in range(len(log) + 1):
        target = sites.topic() if kind == "kafka" else sites.postgres()
        if left:
            refill_log(target, log[:left], 0, left, lambda end: None, goes_on=True)
        assert copied(source, target) == len(log) - left
        assert records(target) == log, left


@pytest.mark.thorough
@pytest.mark.parametrize(
    "point",
    [
        "replica.log.kafka.refill:_send+3",
        *(
            pytest.param(point, marks=pytest.mark.slow)
            for point in ("replica.log.kafka.refill:create_topic+1", "replica.log.kafka.refill:_send+1",
                          "replica.log.kafka.refill:_send+6", "replica.log.kafka.refill:_produce+1")
        ),
    ],
)  # fmt: skip
def test_a_copy_that_is_killed(sites: Sites, point: str) -> None:
    """Goal: the same of real kills. Method: SIGKILL a copy within its writer, copy again, compare."""
    source, target = sites.log(), sites.topic()
    dumped = [one.model_dump(mode="json") for one in (source, target)]
    assert killed_at(point, "log_copy", source=dumped[0], target=dumped[1]) == -signal.SIGKILL
    copied(source, target)
    assert records(target) == records(source)


def test_keys_and_headers_are_copied_where_the_log_keeps_them(sites: Sites) -> None:
    """Goal: a record is copied whole or not at all. Method: one with key and headers, to Kafka and to Postgres."""
    source, target = sites.log(), sites.topic()
    sites.append(source, VALUES[:1], key=b"key", headers=[("name", b"value")])
    assert copied(source, target) == len(VALUES) + 1
    assert records(target) == records(source)
    with pytest.raises(RestoreRefused, match="keys or headers"):
        copied(source, sites.postgres())


def test_a_target_that_is_no_copy_is_refused(sites: Sites) -> None:
    """Goal: nothing is written to another log. Method: the log itself; one whose last record differs, whose first one
    does, and one that is longer."""
    source = sites.log()
    log = records(source)
    with pytest.raises(ConfigError, match="is the log itself"):
        copied(source, source)
    for where in (3, 0):
        other = [replace(record, value=b"another") if record.offset == where else record for record in log[:4]]
        target = target_with(sites, other)
        with pytest.raises(LogCopyRefused, match=f"the record at offset {where}"):
            copied(source, target)
        assert end_of(target) == 4
    with pytest.raises(LogCopyRefused, match="it is no copy"):
        copied(source, target_with(sites, [*log, StoredRecord(len(log), 7, None, b"more")]))


def target_with(sites: Sites, log: list[StoredRecord]) -> KafkaSettings:
    """A topic that has these records."""
    target = sites.topic()
    refill_log(target, log, 0, len(log), lambda end: None)
    return target


@pytest.mark.thorough
def test_somebody_else_who_writes_is_noticed(sites: Sites) -> None:
    """Goal: a copy is only ours. Method: another writer between two rounds, with nothing new and with something new."""
    source = sites.log()
    for new in ([], VALUES[:2]):
        target = sites.topic()
        copier = LogCopier(source, target, lambda _: None)
        copier.open()
        copier.copy(lambda end: None, goes_on=True)
        sites.append(target, [b"another's"])
        sites.append(source, new)
        with pytest.raises(LogCopyRefused, match="somebody else"):
            copier.copy(lambda end: None, goes_on=True)


class Over(BaseException):
    """The test's story is told."""


@pytest.mark.thorough
def test_a_copy_that_follows(sites: Sites) -> None:
    """Goal: what comes is copied, and lag and age are those of the copy. Method: append between two rounds; then a log
    that is gone, and a new process, which knows the copy's end all the same."""
    source, target = sites.log(), sites.topic()
    story: Iterator[object] = iter([lambda: sites.append(source, VALUES[:3])])

    def turn(_: float) -> None:
        step = next(story, None)
        if step is None:
            raise Over
        step()  # type: ignore[operator]

    def follow(log: KafkaSettings) -> dict[str, float]:
        metrics = metrics_of("log_copy", lambda: look_at(log).end, lambda last: lag_s(log, last, 2e9))
        with pytest.raises(Over):
            follow_copy(
                log, target, metrics, interval_s=1.0, tell_failure=lambda error, delay_s: told.append(error.code.name),
                now_s=lambda: 2e9, sleep_s=turn,
            )  # fmt: skip
        return {f"{sample.name}": sample.value for metric in metrics.collect() for sample in metric.samples}

    told: list[str] = []
    found = follow(source)
    assert (found["notary_log_copy_offset"], found["notary_log_copy_lag_seconds"]) == (8.0, 0.0)
    assert records(target) == records(source)
    assert lag_s(source, 4, 2e9) == pytest.approx(2e9 - records(source)[5].timestamp_ms / 1e3)
    gone = source.model_copy(update={"topic": "a-topic-that-is-gone"})
    found = follow(gone)
    assert told == ["LOG_MISSING"]
    assert found["notary_log_copy_offset"] == 8.0
    assert found["notary_log_copy_age_seconds"] == pytest.approx(2e9 - records(target)[8].timestamp_ms / 1e3, abs=2.0)


def test_the_command(sites: Sites, tmp_path: Path) -> None:
    """Goal: what operators type. Method: copy to a second site's configuration, look, go on, finish; then a foreign
    record, which ends a copy that follows as what needs a person."""
    source, target = sites.log(), sites.topic()
    (tmp_path / "parties.toml").write_text("[parties]\n")
    create_key(tmp_path / "notary.key")
    for name, log in (("notary", source), ("second", target)):
        values = {
            "data_dir": "replicas",
            "notary_key_file": "notary.key",
            "endpoint": {"host": "127.0.0.1", "port": 1},
            "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
            "database": {"conninfo": "host=127.0.0.1 dbname=none", "scope": "none"},
            "log": {"kafka": {"bootstrap_servers": log.bootstrap_servers, "topic": log.topic, "single_broker": True}},
            "log_copy": {"to": "second.toml"},
        }
        (tmp_path / f"{name}.toml").write_text(render_config(values, "test"))
    assert load_config(tmp_path / "notary.toml").log_copy.to == tmp_path / "second.toml"

    def types(*words: str) -> Result:
        return CliRunner().invoke(app, ["log", "copy", *words, "--config", str(tmp_path / "notary.toml")])

    def told(*words: str) -> dict[str, Any]:
        result = types(*words, "--json")
        assert result.exit_code == 0, result.output + repr(result.exception)
        found: dict[str, Any] = json.loads(result.output[result.output.index("{") :])
        return found

    assert told("--status")["copy_end"] == 0
    assert (found := told())["copied_records"] == 6, found
    sites.append(source, VALUES[:2])
    status = told("--status")
    assert (status["behind_records"], status["copy_end"], status["log_end"]) == (2, 6, 8)
    assert status["behind_s"] >= 0.0
    assert told("--to", str(tmp_path / "second.toml"))["last"] == 7
    assert told("--finish")["copy_end"] == 8
    sites.append(target, [b"another's"], timestamp=7)
    assert records(target)[-1].timestamp_ms > records(source)[0].timestamp_ms  # the broker stamps again
    refused = types("--follow")
    assert (refused.exit_code, "LOG_COPY_REFUSED" in refused.stderr) == (2, True), refused.output
    assert types("--follow", "--status").exit_code != 0
