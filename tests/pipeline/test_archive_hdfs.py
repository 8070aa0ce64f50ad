"""An archive in HDFS as an operator uses it: written by jobs on Spark, read by jobs on Spark, and restored from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from pipeline.places.open import open_store
from replica.local.kafka import KafkaCluster
from replica.local.ports import PortReservation
from replica.notary.places import Remote
from tests.integration.conftest import MakeDatabase
from tests.pipeline.archive_site import Site, make_site
from tests.pipeline.signed_log import log_values
from tests.worlds.hdfs_server import Hdfs, hdfs

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.postgres, pytest.mark.slow, pytest.mark.timeout(900)]

VALUES = log_values()
LAST = len(VALUES) - 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, ports: PortReservation) -> Iterator[Hdfs]:
    """A file system that takes files."""
    with hdfs(tmp_path_factory.mktemp("hdfs"), ports) as running:
        yield running


def site_in(root: str, folder: Path, kafka: KafkaCluster, make_database: MakeDatabase) -> Site:
    """A log of signed records, and no archive yet, which is to be below this URL."""
    return make_site(folder, kafka, make_database, Remote(f"{root}/notary/lake-{uuid4().hex}"), VALUES)


def test_jobs_on_spark_write_and_read_it(
    server: Hdfs, kafka_broker: KafkaCluster, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Goal: tasks on Spark, too, write and read an archive there. Method: archive, twice; verify, audit, rebuild and
    compare from it; lose a segment, and a job says so."""
    site = site_in(server.address, tmp_path, kafka_broker, make_database)
    assert site.told("archive", "run", "--engine", "spark")["archived_now"] == len(VALUES)
    site.produce(VALUES[1:4])
    assert site.told("archive", "run", "--engine", "spark", "--connector", "python")["archived_now"] == 3
    found = site.told("archive", "verify")
    assert (found["findings"], found["segments"], found["last"]) == ([], 2, LAST + 3)

    audited = site.told("audit", "--log", "archive", "--no-database")
    assert (audited["clean"], audited["end_offset"]) == (True, LAST + 4)
    site.said("index", "rebuild", "--name", "r1", "--engine", "spark", "--log", "archive")
    assert site.told("index", "diff", "--name", "r1", "--log", "topic")["same"] is True
    _lose_a_segment(site)
    assert "ARCHIVE_DAMAGED" in "".join(site.said("audit", "--log", "archive", "--no-database", code=1))


def test_a_topic_is_restored_from_it(
    server: Hdfs, kafka_broker: KafkaCluster, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Goal: a lost topic comes back from there. Method: restore a part elsewhere, then the rest; lose a segment, and
    verification names the first bad offset."""
    site = site_in(server.address, tmp_path, kafka_broker, make_database)
    site.told("archive", "run", "--engine", "process")
    words = ("--to-topic", f"{site.settings.topic}-again")
    checks = site.told("restore", "plan", *words)["checks"]
    assert isinstance(checks, list) and all(check["passed"] for check in checks)
    assert site.told("restore", "run", *words, "--until-offset", "9", "--evidence", "evidence.json")["last"] == 9
    restored = site.told("restore", "run", *words, "--resume", "--evidence", "evidence.json")
    evidence = json.loads((site.folder / "evidence.json").read_text())
    assert (restored["last"], evidence["written_from"]) == (LAST, 10)
    assert evidence["restored_root"] == evidence["archived_root"]
    _lose_a_segment(site)
    assert site.told("archive", "verify", code=1)["first_bad_offset"] == 0


def _lose_a_segment(site: Site) -> None:
    store = open_store(site.place)
    store.remove(min(name for name in store.names("segments/") if name.endswith(".parquet")))


def test_with_hdfs_as_the_default_file_system_local_files_stay_local(
    server: Hdfs, kafka_broker: KafkaCluster, make_database: MakeDatabase, tmp_path: Path
) -> None:
    """Goal: a name service of HADOOP_CONF_DIR is used by Spark's workers as well, and moves no other file. Method: a
    configuration that names HDFS for paths without a scheme; archive, audit with answers, reports here and there."""
    site = site_in(f"hdfs://{server.service}", tmp_path, kafka_broker, make_database)
    site.environment["HADOOP_CONF_DIR"] = str(server.configuration)
    site.told("archive", "run", "--engine", "spark")
    (tmp_path / "answers.jsonl").write_text('{"of": "nobody"}\n')
    from_archive = ("--log", "archive")
    assert site.told("audit", *from_archive, "--no-database", "--answers", "answers.jsonl")["clean"] is True
    history = (
        '{"type": "invoke", "process": "1", "op": 1, "at_ns": 1}\n{"type": "ok", "process": "1", "op": 1, "at_ns": 2}\n'
    )
    (tmp_path / "history.jsonl").write_text(history)
    site.said("report", *from_archive, "--out", "report", "--telemetry", "history.jsonl")
    site.said("report", *from_archive, "--out", f"{site.place}-report", "--telemetry", "history.jsonl")
    local = [path.relative_to(tmp_path / "report") for path in (tmp_path / "report").rglob("*") if path.is_file()]
    there = open_store(Remote(f"{server.address}/{site.place.split('/', 3)[3]}-report")).names("")
    assert _tables(there) == _tables([path.as_posix() for path in local if not path.name.startswith(".")])
    assert any(name.startswith("verdicts/part-") for name in there)


def _tables(names: list[str]) -> list[str]:
    """Files of a report; Spark names those of a table by chance."""
    return sorted({name.partition("part-")[0] for name in names})
