"""`notary archive` and `notary restore` as an operator types them, with an archive on a real S3 server."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from pipeline.archive.manifest import load_manifest
from pipeline.places.open import open_store
from replica.active.signer import create_key
from replica.config.file import render_config
from replica.config.load import load_config
from replica.local.kafka import KafkaCluster
from replica.log.kafka.settings import KafkaSettings
from replica.log.kafka.topic import create_topic
from replica.notary.places import Remote
from replica.store.archive_head import ArchiveHeads
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.pipeline.killed_job import killed_at
from tests.worlds.archive_world import SIGNER, some_log
from tests.worlds.s3_server import BUCKET, Faults, environment, failing, served

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

VALUES = some_log(40)
ENDS_S = 180.0
NEVER = "pipeline.archive.write:_entries+99"
KILLS = [
    "pipeline.archive.write:open_manifest+1",
    "pipeline.archive.write:_entries-1",  # the segments of a batch are there, no line names them
    "pipeline.archive.lines:keep-2",
    "pipeline.archive.lines:keep+2",  # the lines are there, the database does not know them
    "replica.store.archive_head:ArchiveHeads.record+2",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server."""
    with served(tmp_path_factory.mktemp("s3")) as address:
        yield address


@dataclass
class Site:
    """A participant whose archive is in a bucket; commands are processes, with the credentials in their environment."""

    folder: Path
    kafka: KafkaCluster
    dsn: str
    settings: KafkaSettings
    place: Remote
    address: str
    further: dict[str, str] = field(default_factory=dict)

    @property
    def config(self) -> Path:
        return self.folder / "notary.toml"

    def told(self, *words: str, code: int = 0) -> dict[str, object]:
        argv = [sys.executable, "-m", "replica.cli", *words, "--config", str(self.config), "--json"]
        done = subprocess.run(
            argv,
            env=environment(self.address) | self.further,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=ENDS_S,
            check=False,
        )
        assert done.returncode == code, done.stdout + done.stderr
        if "{" not in done.stdout:
            return {"error": done.stderr}
        found: dict[str, object] = json.loads(done.stdout[done.stdout.index("{") :])
        return found

    def produce(self, values: list[bytes]) -> None:
        producer = Producer({"bootstrap.servers": self.settings.bootstrap_servers})
        for value in values:
            producer.produce(self.settings.topic, value, partition=0)
        assert producer.flush(20) == 0


@pytest.fixture
def site(
    server: str,
    kafka_broker: KafkaCluster,
    make_database: MakeDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    """A log of forty records, and no archive yet. This process looks at the bucket with the same credentials."""
    dsn, name = asyncio.run(_migrated(make_database)), f"lake-{uuid4().hex}"
    create_key(tmp_path / "notary.key")
    (tmp_path / "parties.toml").write_text("[parties]\n")
    place = Remote(f"s3a://{BUCKET}/{name}")
    values = {
        "data_dir": "replicas",
        "notary_key_file": "notary.key",
        "endpoint": {"host": "127.0.0.1", "port": 1},
        "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
        "database": {"conninfo": dsn, "scope": name},
        "kafka": {"bootstrap_servers": kafka_broker.bootstrap_servers, "topic": name, "single_broker": True},
        "api": {"registry_path": "parties.toml"},
        "archive": {"folder": str(place), "segment_records": 100},
    }
    (tmp_path / "notary.toml").write_text(render_config(values, "test"))
    for variable, value in environment(server).items():
        monkeypatch.setenv(variable, value)
    open_store.cache_clear()
    settings = KafkaSettings(bootstrap_servers=kafka_broker.bootstrap_servers, topic=name, single_broker=True)
    asyncio.run(create_topic(settings))
    assert load_config(tmp_path / "notary.toml").archive.folder == place
    found = Site(tmp_path, kafka_broker, dsn, settings, place, server)
    found.produce(VALUES)
    yield found
    open_store.cache_clear()


async def _migrated(make_database: MakeDatabase) -> str:
    dsn = await make_database()
    await migrate(dsn, 1)
    return dsn


def test_a_log_is_archived_verified_and_copied(site: Site) -> None:
    """Goal: each command works as with a folder. Method: archive, go on, verify, copy, lose a segment, verify again."""
    assert site.told("archive", "run")["archived_now"] == 40
    assert list(site.folder.glob("s3a*")) == []
    site.produce(VALUES[:3])
    assert site.told("archive", "status")["behind_records"] == 3
    found = site.told("archive", "verify")
    assert (found["findings"], found["segments"], found["last"]) == ([], 1, 39)
    copied = site.told("recovery", "copy", "--to", "copy")
    assert (copied["carried"], copied["last"]) == (1, 39)
    assert site.told("archive", "verify", "--folder", "copy")["findings"] == []
    site.told("recovery", "copy", "--to", f"{site.place}-copy")
    assert site.told("archive", "verify", "--folder", f"{site.place}-copy")["findings"] == []
    checks = site.told("restore", "plan", "--to-topic", f"{site.settings.topic}-again")["checks"]
    assert isinstance(checks, list) and all(check["passed"] for check in checks)
    store = open_store(site.place)
    (segment,) = (name for name in store.names("segments/") if name.endswith(".parquet"))
    assert store.remove(segment)
    assert site.told("archive", "verify", code=1)["first_bad_offset"] == 0
    site.further["AWS_SECRET_ACCESS_KEY"] = "stolen and withdrawn"
    assert "PLACE_ACCESS_DENIED" in str(site.told("archive", "status", code=1)["error"])


@pytest.mark.slow
def test_jobs_read_the_archive_and_a_topic_is_restored_from_it(site: Site) -> None:
    """Goal: whatever reads an archive reads this one. Method: rebuild from it; archive more; restore it elsewhere."""
    site.told("archive", "run")
    site.told("index", "rebuild", "--name", "r1", "--engine", "spark")
    assert site.told("index", "diff", "--name", "r1", "--log", "topic")["same"] is True
    site.produce(VALUES[1:4])
    assert site.told("archive", "run", "--connector", "python")["archived_now"] == 3
    words = ("--to-topic", f"{site.settings.topic}-again", "--evidence", "evidence.json")
    assert site.told("restore", "run", *words, "--until-offset", "9")["last"] == 9
    restored = site.told("restore", "run", *words, "--resume", "--until-time", "2100-01-01T00:00:00Z")
    evidence = json.loads((site.folder / "evidence.json").read_text())
    assert (restored["last"], evidence["written_from"]) == (42, 10)
    assert evidence["restored_root"] == evidence["archived_root"]
    nothing = site.told("restore", "plan", "--to-topic", "none", "--until-time", "2000-01-01T00:00:00Z", code=1)
    assert nothing["last"] == -1


@pytest.mark.slow
@pytest.mark.parametrize("point", KILLS)
def test_an_archiver_that_is_killed(site: Site, point: str) -> None:
    """Goal: each record is archived once. Method: SIGKILL at a step, run again, verify, compare with the log."""
    job = {"kafka": site.settings.model_dump(mode="json"), "folder": str(site.place), "dsn": site.dsn}
    assert killed_at(point, "archive", **job) == -signal.SIGKILL
    assert killed_at(NEVER, "archive", **job) == 0
    manifest = load_manifest(site.place, SIGNER.public_key)
    found = [record.value for segment in manifest.segments for record in manifest.records(segment.facts)]
    assert found == VALUES
    assert ArchiveHeads(site.dsn).newest("archive-1") == manifest.head


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_an_archive_is_made_through_a_server_that_fails(site: Site, seed: int) -> None:
    """Goal: 503s and lost answers in tasks, too, cost time only. Method: `archive run` through such a server."""
    faults = Faults(Random(seed), refused=0.1, lost=0.1, slow=0.1)
    with failing(site.address, faults) as address:
        site.further["AWS_ENDPOINT_URL"] = address
        assert site.told("archive", "run")["archived_now"] == 40
    assert faults.seen["refused"] + faults.seen["lost"] > 0
    del site.further["AWS_ENDPOINT_URL"]
    assert site.told("archive", "verify")["findings"] == []
