"""`notary archive` and `notary restore` as an operator types them, with an archive on a real S3 server."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from pipeline.archive.manifest import load_manifest
from pipeline.places.open import open_store
from pipeline.reports.page import PAGE
from replica.index.rocks import RocksIndex, verify_index
from replica.local.kafka import KafkaCluster
from replica.log.kafka.topic import create_topic
from replica.notary.places import Remote
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.store.archive_head import ArchiveHeads
from tests.integration.conftest import MakeDatabase
from tests.pipeline.archive_site import VALUES, Site, make_site
from tests.pipeline.killed_job import killed_at
from tests.worlds.archive_world import SIGNER
from tests.worlds.s3_server import BUCKET, Faults, environment, failing, served

pytestmark = [pytest.mark.thorough, pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres]

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


@pytest.fixture
def site(
    server: str,
    kafka_broker: KafkaCluster,
    make_database: MakeDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Site]:
    """A log of forty records, and no archive yet. This process looks at the bucket with the same credentials."""
    for variable, value in environment(server).items():
        monkeypatch.setenv(variable, value)
    open_store.cache_clear()
    yield make_site(tmp_path, kafka_broker, make_database, Remote(f"s3a://{BUCKET}/lake-{uuid4().hex}"))
    open_store.cache_clear()


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
    site.environment["AWS_SECRET_ACCESS_KEY"] = "stolen and withdrawn"
    assert "PLACE_ACCESS_DENIED" in str(site.told("archive", "status", code=1)["error"])


def test_a_checkpoint_is_shipped_to_a_bucket_and_a_replica_begins_with_it(site: Site) -> None:
    """Goal: docs/pipeline.md's commands of the second site, with buckets. Method: archive, ship, verify, ship again,
    seed another replica, each from the copy of the archive; lose an object, verify again."""
    site.told("archive", "run", "--engine", "process")
    site.told("recovery", "copy", "--to", f"{site.place}-copy")
    checkpoint, there = checkpoint_of(site), f"{site.place}-checkpoints"
    printed, _ = site.said("recovery", "ship", str(checkpoint), "--to", there)
    shipped = Remote(f"{there}/{39:019d}")
    assert shipped in printed.replace("\n", "")
    from_copy = ("--folder", f"{site.place}-copy")
    assert "applied to log offset 39" in site.said("recovery", "verify", shipped, *from_copy)[0]
    assert "exists already" in site.said("recovery", "ship", str(checkpoint), "--to", there, code=2)[1]
    assert "starts at offset 39" in site.said("recovery", "seed", shipped, "--name", "r1", *from_copy)[0]
    index = site.folder / "replicas" / "r1" / "index"
    assert verify_index(index).digest == verify_index(checkpoint).digest
    store = open_store(shipped)
    assert store.remove(max(store.names("index/"), key=store.size))
    assert "ARCHIVE_DAMAGED" in site.said("recovery", "verify", shipped, *from_copy, code=1)[1]
    assert list(site.folder.glob("s3a*")) == []


@pytest.mark.slow
def test_a_report_in_a_bucket_goes_on_from_the_one_before(site: Site) -> None:
    """Goal: as in a folder. Method: a report from the tables, more records, another one; a whole one in a folder."""
    place = Remote(f"{site.place}-report")
    site.told("tables", "run")
    assert "all 40 records are counted" in " ".join(site.said("report", "--log", "tables", "--out", place)[1].split())
    site.produce(VALUES[1:4])
    site.told("tables", "run")
    printed, said = site.said("report", "--log", "tables", "--out", place)
    assert "3 records newer than the one before" in " ".join(printed.split()) and "are counted" not in said
    site.said("report", "--log", "tables", "--out", "report")
    store, whole = open_store(place), site.folder / "report"
    assert store.names("") == sorted(path.name for path in whole.iterdir())
    for name in store.names(""):
        assert name == PAGE or store.read(name) == (whole / name).read_bytes()
    assert list(site.folder.glob("s3a*")) == []


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


def checkpoint_of(site: Site) -> Path:
    """A checkpoint of an index that has the whole log."""
    reading = read_records(begin(asyncio.run(create_topic(site.settings))), list(enumerate(VALUES)))
    index = RocksIndex(site.folder / "live")
    index.write({}, reading.position)
    index.checkpoint(site.folder / "checkpoint")
    index.close()
    return site.folder / "checkpoint"


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
def test_an_archive_is_made_through_a_server_that_fails(site: Site, server: str, seed: int) -> None:
    """Goal: 503s and lost answers in tasks, too, cost time only. Method: `archive run` through such a server."""
    faults = Faults(Random(seed), refused=0.1, lost=0.1, slow=0.1)
    with failing(server, faults) as address:
        site.environment["AWS_ENDPOINT_URL"] = address
        assert site.told("archive", "run")["archived_now"] == 40
    assert faults.seen["refused"] + faults.seen["lost"] > 0
    del site.environment["AWS_ENDPOINT_URL"]
    assert site.told("archive", "verify")["findings"] == []
