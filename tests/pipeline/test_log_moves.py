"""A log moves to another kind and back, at the same offsets: by the archive, as operators type it, on real servers."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from replica.active.signer import create_key
from replica.cli import pipeline as shared
from replica.cli.main import app
from replica.config.file import render_config
from replica.config.load import load_config
from replica.index.rocks import RocksIndex
from replica.local.kafka import KafkaCluster
from replica.local.topic_reader import read_topic
from replica.log.kafka.topic import create_topic
from replica.log.open import open_log
from replica.notary.position import begin, encode_position
from replica.notary.reading import read_records
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.pipeline.test_commands import _made, _publish
from tests.worlds.archive_world import some_log

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

VALUES = some_log(60)
BEFORE, ON_POSTGRES = VALUES[:40], VALUES[40:50]


@dataclass
class Moving:
    """A participant without replicas: its configuration, which changes, and its database."""

    folder: Path
    dsn: str
    servers: str
    log: dict[str, object] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "notary.toml"

    def configure(self, kind: str, topic: str) -> None:
        """What the operator edits: the kind of the log, and the name of a topic that does not exist yet."""
        self.log = {
            "kind": kind,
            "kafka": {"bootstrap_servers": self.servers, "topic": topic, "single_broker": True},
            "postgres": {"conninfo": self.dsn, "single_server": True},
        }
        values = {
            "data_dir": "replicas",
            "notary_key_file": "notary.key",
            "endpoint": {"host": "127.0.0.1", "port": 1},
            "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
            "database": {"conninfo": self.dsn, "scope": conninfo_to_dict(self.dsn)["dbname"]},
            "log": self.log,
        }
        self.config.unlink(missing_ok=True)
        self.config.write_text(render_config(values, "test"))

    def types(self, *words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--config", str(self.config)])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.output

    def append(self, values: list[bytes]) -> None:
        asyncio.run(self._append(values))

    def records(self) -> list[tuple[int, bytes]]:
        return list(read_topic(load_config(self.config).log.settings, None))

    def topic_id(self) -> str:
        return asyncio.run(self._topic_id())

    def ledger(self) -> tuple[object, ...] | None:
        """What the database has published, and up to which record."""
        with psycopg.connect(self.dsn) as connection:
            return connection.execute("SELECT published_offset, epoch FROM participant").fetchone()

    def index_position(self) -> tuple[str, int]:
        index = RocksIndex(load_config(self.config).replica_dir("r1") / "index")
        found = index.position()
        index.close()
        assert found is not None
        return found.topic_id, found.offset

    async def _append(self, values: list[bytes]) -> None:
        log = open_log(load_config(self.config).log.settings)
        end, writer = await log.end_offset() + len(values), await log.open_writer()
        writer.append_all(values)
        async with asyncio.timeout(60):
            while await log.end_offset() < end:
                await asyncio.sleep(0.01)
        await log.close()

    async def _topic_id(self) -> str:
        log = open_log(load_config(self.config).log.settings)
        found = await log.check()
        await log.close()
        return found


@pytest.fixture
def moving(
    spark: SparkSession,
    kafka_broker: KafkaCluster,
    make_database: MakeDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Moving:
    """On Kafka, with forty records that are published, indexed and archived."""
    monkeypatch.setattr(type(spark), "stop", lambda session: None)
    monkeypatch.setattr(shared, "quiet_libraries", lambda: None)
    monkeypatch.chdir(tmp_path)
    create_key(tmp_path / "notary.key")
    (tmp_path / "parties.toml").write_text("[parties]\n")
    dsn = asyncio.run(_migrated(make_database))
    moving = Moving(tmp_path, dsn, kafka_broker.bootstrap_servers)
    moving.configure("kafka", f"first-{conninfo_to_dict(dsn)['dbname']}")
    settings = load_config(moving.config)
    asyncio.run(create_topic(settings.log.settings))
    moving.append(BEFORE)
    position = read_records(begin(moving.topic_id()), list(enumerate(BEFORE))).position
    _publish(settings.conninfo(), encode_position(position), position.offset, position.topic_id)
    index = RocksIndex(_made(settings.replica_dir("r1")) / "index")
    index.write({}, position)
    index.close()
    moving.types("archive", "run")
    return moving


async def _migrated(make_database: MakeDatabase) -> str:
    dsn = await make_database()
    await migrate(dsn, 1)
    return dsn


def test_a_log_moves_from_kafka_to_postgres_and_back(moving: Moving) -> None:
    """Goal: every record, offset, completion and index stays what it is. Method: archive, change `log.kind`, restore,
    adopt; append there; the same back to a new topic."""
    ledger, first_id = moving.ledger(), moving.topic_id()
    for kind, grown in (("postgres", BEFORE), ("kafka", BEFORE + ON_POSTGRES)):
        moving.configure(kind, f"back-{conninfo_to_dict(moving.dsn)['dbname']}")
        moving.types("restore", "plan")
        moving.types("restore", "run")
        assert moving.records() == list(enumerate(grown))
        moving.types("restore", "adopt", "--name", "r1")
        assert moving.topic_id() != first_id
        assert moving.index_position() == (moving.topic_id(), len(BEFORE) - 1)
        assert moving.ledger() == ledger
        more = VALUES[len(grown) : len(grown) + len(ON_POSTGRES)]
        moving.append(more)
        assert f"{len(more)} records" in moving.types("archive", "run")
        assert moving.records() == list(enumerate(grown + more))
    moving.types("archive", "verify")
