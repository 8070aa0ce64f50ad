"""A participant with a log and no archive yet, whose archive is to be in a store; commands are processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer

from replica.active.signer import create_key
from replica.config.file import render_config
from replica.config.load import load_config
from replica.local.kafka import KafkaCluster
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from replica.notary.places import Remote
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.worlds.archive_world import some_log

VALUES = some_log(40)
ENDS_S = 600.0


@dataclass
class Site:
    """A participant whose archive is in a store; `environment`: further variables of its commands, as credentials."""

    folder: Path
    dsn: str
    settings: KafkaSettings
    place: Remote
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "notary.toml"

    def said(self, *words: str, code: int = 0) -> tuple[str, str]:
        """What a command prints, and what it prints as an error."""
        done = subprocess.run(
            [sys.executable, "-m", "replica.cli", *words, "--config", str(self.config)],
            env=os.environ | self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=ENDS_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout, done.stderr

    def told(self, *words: str, code: int = 0) -> dict[str, object]:
        """What a command prints for programs."""
        printed, error = self.said(*words, "--json", code=code)
        if "{" not in printed:
            return {"error": error}
        found: dict[str, object] = json.loads(printed[printed.index("{") :])
        return found

    def produce(self, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers})
        for value in values:
            producer.produce(self.settings.topic, value, partition=0)
        assert producer.flush(20) == 0


def make_site(
    folder: Path, kafka: KafkaCluster, make_database: MakeDatabase, place: Remote, values: list[bytes] = VALUES
) -> Site:
    """A log of these records, and no archive yet. The log's topic is named as the last part of the place."""
    dsn, name = asyncio.run(_migrated(make_database)), place.rpartition("/")[2]
    create_key(folder / "notary.key")
    (folder / "parties.toml").write_text("[parties]\n")
    configured = {
        "data_dir": "replicas",
        "notary_key_file": "notary.key",
        "endpoint": {"host": "127.0.0.1", "port": 1},
        "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
        "database": {"conninfo": dsn, "scope": name},
        "log": {"kafka": {"bootstrap_servers": kafka.bootstrap_servers, "topic": name, "single_broker": True}},
        "archive": {"folder": str(place), "segment_records": 100},
    }
    (folder / "notary.toml").write_text(render_config(configured, "test"))
    settings = KafkaSettings(bootstrap_servers=kafka.bootstrap_servers, topic=name, single_broker=True)
    asyncio.run(create_topic(settings))
    assert load_config(folder / "notary.toml").archive.folder == place
    found = Site(folder, dsn, settings, place)
    found.produce(values)
    return found


async def _migrated(make_database: MakeDatabase) -> str:
    dsn = await make_database()
    await migrate(dsn, 1)
    return dsn
