"""`notary archive` and `notary restore` as an operator types them, on real servers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from pipeline.session import delta_jars
from replica.active.signer import create_key
from replica.cli import log_source
from replica.cli import pipeline as shared
from replica.cli.main import app
from replica.config.file import render_config
from replica.config.load import load_config
from replica.index.rocks import RocksIndex
from replica.local.kafka import KafkaCluster
from replica.local.ports import PortReservation
from replica.log.kafka.topic import create_topic
from replica.notary.counted import CountedRequest
from replica.notary.errors import ConfigError, LogRefused, StoreMismatch
from replica.notary.position import begin, decode_position, encode_position
from replica.notary.reading import read_records
from replica.notary.requests import format_state_ref
from replica.store.open import adopt_topic
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase, PostgresServer
from tests.pipeline.judged import by_tables
from tests.worlds.archive_world import some_log

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

VALUES = some_log(40)


@dataclass
class Operator:
    """A configuration, and somebody who types."""

    config: Path
    kafka: KafkaCluster
    database: str

    def types(self, *words: str) -> Result:
        return CliRunner().invoke(app, [*words, "--config", str(self.config)])

    def told(self, *words: str, code: int = 0) -> dict[str, Any]:
        result = self.types(*words, "--json")
        assert result.exit_code == code, result.output + repr(result.exception)
        found: dict[str, Any] = json.loads(result.output[result.output.index("{") :])
        return found

    def produce(self, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers})
        for value in values:
            producer.produce(load_config(self.config).log.settings.topic, value, partition=0)
        assert producer.flush(20) == 0


@pytest.fixture
def operator(
    spark: SparkSession,
    kafka_broker: KafkaCluster,
    postgres_server: PostgresServer,
    make_database: MakeDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Operator]:
    """A participant with a log of forty records. The commands use the tests' Spark session and do not end it."""
    dsn = asyncio.run(_migrated(make_database))
    database = conninfo_to_dict(dsn)["dbname"]
    create_key(tmp_path / "notary.key")
    (tmp_path / "parties.toml").write_text("[parties]\n")
    values = {
        "data_dir": "replicas",
        "notary_key_file": "notary.key",
        "endpoint": {"host": "127.0.0.1", "port": 1},
        "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
        "database": {"conninfo": dsn, "scope": database},
        "log": {
            "kafka": {
                "bootstrap_servers": kafka_broker.bootstrap_servers,
                "topic": f"commands-{database}",
                "single_broker": True,
            }
        },
    }
    (tmp_path / "notary.toml").write_text(render_config(values, "test"))
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    monkeypatch.setattr(shared, "quiet_libraries", lambda: None)
    operator = Operator(tmp_path / "notary.toml", kafka_broker, str(database))
    asyncio.run(create_topic(load_config(operator.config).log.settings))
    operator.produce(VALUES)
    yield operator
    monkeypatch.undo()


async def _migrated(make_database: MakeDatabase) -> str:
    dsn = await make_database()
    await migrate(dsn, 1)
    return dsn


def test_archive_run_status_and_verify(operator: Operator) -> None:
    """Goal: each command does what its help describes. Method: archive, go on, verify, cut the tail, verify again."""
    assert operator.told("archive", "run")["archived_now"] == 40
    operator.produce(VALUES[:3])
    assert operator.told("archive", "status")["behind_records"] == 3
    assert operator.told("archive", "run", "--connector", "python")["archived_now"] == 3
    assert operator.told("archive", "verify")["findings"] == []
    manifest = operator.config.parent / "archive" / "manifest.jsonl"
    manifest.write_bytes(b"".join(manifest.read_bytes().splitlines(keepends=True)[:-1]))
    assert operator.told("archive", "verify", code=1)["first_bad_offset"] == 40
    assert operator.told("archive", "verify", "--offline")["findings"] == []
    refused = operator.types("archive", "run")
    assert "its end was cut off" in str(refused.exception)


@pytest.mark.thorough
def test_the_second_site_has_the_archive_and_a_checkpoint(operator: Operator, tmp_path: Path) -> None:
    """Goal: docs/pipeline.md's commands of the second site. Method: archive, copy, ship an index's checkpoint;
    verify it there, and a damaged one; copy again what is new."""
    settings = load_config(operator.config)
    operator.told("archive", "run")
    position = read_records(begin(asyncio.run(create_topic(settings.log.settings))), list(enumerate(VALUES))).position
    index = RocksIndex(_made(settings.replica_dir("r1")) / "index")
    index.write({}, position)
    index.close()
    site = tmp_path / "site"
    copied = operator.told("recovery", "copy", "--to", str(site / "archive"))
    assert (copied["last"], copied["carried"]) == (39, copied["segments"])
    made = operator.types("index", "checkpoint", str(tmp_path / "checkpoint"), "--name", "r1")
    assert made.exit_code == 0, made.output + repr(made.exception)
    shipped = operator.types("recovery", "ship", str(tmp_path / "checkpoint"), "--to", str(site / "checkpoints"))
    assert shipped.exit_code == 0, shipped.output + repr(shipped.exception)
    (there,) = (site / "checkpoints").iterdir()
    verify = ("recovery", "verify", str(there), "--folder", str(site / "archive"))
    assert "applied to log offset 39" in operator.types(*verify).output
    damaged = max((path for path in there.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged.write_bytes(damaged.read_bytes() + b"x")
    assert operator.types(*verify).exit_code != 0
    operator.produce(VALUES[:3])
    operator.told("archive", "run")
    assert operator.told("recovery", "copy", "--to", str(site / "archive"))["carried"] == 1


def test_who_wanted_a_state_and_what_a_day_was_like(
    operator: Operator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: docs/audit.md's commands of evidence. Method: trace a state of the log, and one that nobody wanted, on
    Spark; the report; then with the tables, which tell the same without Spark, also where the log goes on."""
    reading = read_records(begin(""), list(enumerate(VALUES)))
    wanting = next(one for one in reading.counted if isinstance(one, CountedRequest) and one.request.inputs)
    state = wanting.request.inputs[0]
    traced = operator.types("trace", "state", format_state_ref(state))
    assert traced.exit_code == 0, traced.output + repr(traced.exception)
    assert wanting.request.tx_id.hex() in traced.output
    nobody = operator.types("trace", "state", f"{'ee' * 32}:0")
    assert wanting.request.tx_id.hex() not in nobody.output
    made = operator.types("report", "--out", str(tmp_path / "report"))
    assert made.exit_code == 0, made.output + repr(made.exception)
    assert list((tmp_path / "report").rglob("*.html"))
    operator.told("tables", "run", "--engine", "process")
    operator.produce([b"no record at all"])
    monkeypatch.setattr(log_source, "spark", None)
    looked_up = operator.types("trace", "state", format_state_ref(state))
    assert looked_up.exit_code == 0, looked_up.output + repr(looked_up.exception)
    assert entries(looked_up.stdout) == entries(traced.stdout)
    assert "up to log offset 39, and 1 newer records, none of which names it" in " ".join(looked_up.stderr.split())
    operator.produce([VALUES[wanting.offset]])
    again = operator.types("trace", "state", format_state_ref(state))
    assert again.exit_code != 0 and "offset 41 names it as well" in " ".join(again.stderr.split())


def entries(printed: str) -> Any:
    """The evidence; lines of the program's log may stand before it."""
    return json.loads("[" + printed.partition("\n[")[2] if not printed.startswith("[") else printed)


def test_tables_follow_the_log_and_a_killed_job_goes_on(operator: Operator) -> None:
    """Goal: what is in the log is in the tables once. Method: append; follow; a second job; SIGKILL; append again."""
    run = ("tables", "run", "--engine", "process")
    assert operator.told(*run) == {"offset": 39, "appended_records": 40}
    command = [sys.executable, "-m", "replica.cli", *run, "--follow", "--config", str(operator.config)]
    with _job(command) as job:
        operator.produce(VALUES[:3])
        until_s = time.monotonic() + 120
        while operator.told("tables", "status")["offset"] < 42:
            assert job.poll() is None and time.monotonic() < until_s
            time.sleep(0.2)
        assert operator.types(*run).exit_code != 0
        operator.produce(VALUES[3:9])
    assert operator.told(*run)["offset"] == 48
    reading = read_records(begin(""), list(enumerate([*VALUES, *VALUES[:9]])))
    tables = operator.config.parent / "tables"
    for name in ("requests", "verdicts"):
        found = DeltaTable(str(tables / name)).to_pyarrow_table().column("log_offset").to_pylist()
        assert sorted(found) == [one.offset for one in reading.counted if isinstance(one, CountedRequest)]


@pytest.mark.thorough
@pytest.mark.skipif(not delta_jars(), reason="no jars of Delta Lake: `make setup` fetches them")
def test_tables_are_written_on_spark_by_whichever_source(operator: Operator) -> None:
    """Goal: both sources lead to the rows of the other engine, which goes on afterwards. Method: append by each."""
    spark = ("tables", "run")  # it is there, so it is the default
    assert operator.told(*spark, "--connector", "spark") == {"offset": 39, "appended_records": 40}
    operator.produce(VALUES[:3])
    assert operator.told(*spark, "--connector", "python") == {"offset": 42, "appended_records": 3}
    operator.produce(VALUES[3:5])
    assert operator.told("tables", "run", "--engine", "process") == {"offset": 44, "appended_records": 2}
    values = [*VALUES, *VALUES[:5]]
    for name, of in by_tables(values).items():
        found = DeltaTable(str(operator.config.parent / "tables" / name)).to_pyarrow_table().to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, of.rows)), name
    refused = operator.types("tables", "run", "--engine", "sparc")
    assert isinstance(refused.exception, ConfigError) and "not 'sparc'" in str(refused.exception)


@pytest.mark.thorough
@pytest.mark.skipif(not delta_jars(), reason="no jars of Delta Lake: `make setup` fetches them")
def test_a_query_that_follows_is_watched_and_stops_at_a_signal(operator: Operator, ports: PortReservation) -> None:
    """Goal: a service on Spark shows how it fares, and a stop leaves nothing half done. Method: follow, look, stop."""
    port = ports.take()
    words = ("tables", "run", "--follow", "--engine", "spark", "--trigger", "1", "--master", "local[2]")
    command = [sys.executable, "-m", "replica.cli", *words, "--config", str(operator.config)]
    environment = os.environ | {"NOTARY_TABLES__METRICS__PORT": str(port)}
    with _job(command, stderr=subprocess.PIPE, env=environment) as job:
        until_s = time.monotonic() + 200
        while (shown := _scraped(port)).get("notary_tables_records_total") != 40 or not any(map(_is_phase, shown)):
            if job.poll() is not None or time.monotonic() > until_s:
                job.kill()
                pytest.fail(f"{shown}: {job.communicate()[1]}")
            time.sleep(0.2)
        assert shown["notary_tables_offset"] == 39 and shown["notary_tables_lag_records"] == 0
        job.terminate()
        _, said = job.communicate(timeout=120)
    assert job.returncode == 0, said
    assert "stopping after what is being written" in said and "Traceback" not in said
    assert operator.told("tables", "run", "--engine", "process") == {"offset": 39, "appended_records": 0}


@contextmanager
def _job(command: Sequence[str], **given: Any) -> Iterator[subprocess.Popen[str]]:
    """A job that is gone when the context ends, however it does: `Popen` would wait for one that nobody stopped."""
    with subprocess.Popen(command, text=True, **given) as job:
        try:
            yield job
        finally:
            job.kill()


def _is_phase(name: str) -> bool:
    return name.startswith('notary_tables_batch_seconds{phase="addBatch"')


def _scraped(port: int) -> dict[str, float]:
    """The job's metrics; none before it serves them."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:  # also one that does not answer in time
        return {}
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if not line.startswith("#")}


@pytest.mark.thorough
def test_a_deleted_topic_is_restored_and_adopted(operator: Operator, tmp_path: Path) -> None:
    """Goal: a lost topic comes back under database, index and archive. Method: publish, archive, delete, restore."""
    settings = load_config(operator.config)
    operator.told("archive", "run")
    position = read_records(begin(asyncio.run(create_topic(settings.log.settings))), list(enumerate(VALUES))).position
    _publish(settings.conninfo(), encode_position(position), position.offset, position.topic_id)
    index = RocksIndex(_made(settings.replica_dir("r1")) / "index")
    index.write({}, position)
    index.close()
    asyncio.run(operator.kafka.delete_topic(settings.log.settings.label))
    evidence = tmp_path / "evidence.json"
    restored = operator.told("restore", "run", "--evidence", str(evidence))
    assert json.loads(evidence.read_text())["restored_root"] == json.loads(evidence.read_text())["archived_root"]
    adopted = operator.types("restore", "adopt", "--name", "r1")
    assert adopted.exit_code == 0, adopted.output + repr(adopted.exception)
    index = RocksIndex(settings.replica_dir("r1") / "index")
    found = index.position()
    index.close()
    assert found is not None and (found.topic_id, found.offset) == (restored["topic_id"], 39)
    assert operator.told("archive", "status")["topic_id"] == restored["topic_id"]
    operator.produce(VALUES[:1])
    assert operator.told("archive", "run")["archived_now"] == 1


@pytest.mark.thorough
def test_the_database_is_not_bound_to_a_log_without_its_records(operator: Operator) -> None:
    """Goal: no completion loses the record it rests on. Method: adopt with a foreign position, and under a lock."""
    settings = load_config(operator.config)
    position = read_records(begin("lost"), list(enumerate(VALUES))).position
    _publish(settings.conninfo(), encode_position(position), 39, "lost")

    def refuse(at: object) -> None:
        raise LogRefused("not the record")

    with pytest.raises(LogRefused):
        adopt_topic(settings.conninfo(), 77, "other", refuse)
    import psycopg

    with psycopg.connect(settings.conninfo()) as active:
        active.execute("SELECT pg_advisory_lock(77)")
        with pytest.raises(StoreMismatch, match="a replica is active"):
            adopt_topic(settings.conninfo(), 77, "other", lambda at: None)
    assert adopt_topic(settings.conninfo(), 77, "other", lambda at: None) == decode_position(
        encode_position(read_records(begin("other"), list(enumerate(VALUES))).position)
    )


def _publish(conninfo: str, position: bytes, offset: int, topic_id: str) -> None:
    import psycopg

    with psycopg.connect(conninfo, autocommit=True) as connection:
        connection.execute(
            "UPDATE participant SET topic_id = %s, published_offset = %s, published_position = %s",
            (topic_id, offset, position),
        )


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
