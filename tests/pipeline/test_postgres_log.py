"""The pipeline over a request log on Postgres: archived by ranges, read by Spark, rebuilt, audited, restored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from typer.testing import CliRunner

import replica.cli.pipeline as shared
from pipeline.archive.manifest import Manifest, load_manifest
from pipeline.archive.on_spark import on_spark
from pipeline.archive.restore import compare, plan_restore, run_restore
from pipeline.archive.restore_plan import Until
from pipeline.archive.segment import read_segment
from pipeline.archive.verify import verify_archive
from pipeline.archive.write import Archiver, BatchSize
from pipeline.audit.audit import Scope, audit_log
from pipeline.jobs import slices
from pipeline.jobs.rebuild import rebuild_index
from pipeline.jobs.slices import served_log
from pipeline.sources.log import log_frame
from pipeline.sources.topic import look_at
from replica.active.signer import create_key
from replica.cli.main import app
from replica.config.file import render_config
from replica.config.load import load_config
from replica.index.rocks import RocksIndex
from replica.log.admin import StoredRecord
from replica.log.open import open_log, open_log_admin, refill_log
from replica.log.postgres.install import install
from replica.log.postgres.settings import PostgresLogSettings
from replica.notary.errors import ConfigError, RestoreRefused
from replica.notary.position import begin, encode_position
from replica.notary.reading import read_records
from replica.store.archive_head import ArchiveHeads
from replica.store.postgres.migrate import migrate
from tests.integration.conftest import MakeDatabase
from tests.pipeline.judged import by_replica
from tests.pipeline.signed_log import log_values
from tests.pipeline.test_commands import _made, _publish
from tests.pipeline.test_slices import records
from tests.worlds.archive_world import SIGNER, TIME_MS, make_archive, some_log

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

SIZE = BatchSize(segment_records=10, segments=2)
PARTITION_RECORDS = 50  # small, so that restored records go over partitions
VALUES = some_log(166)
ALL = Until()


@dataclass
class World:
    """A log and a store in one database, and an archive to be."""

    spark: SparkSession
    settings: PostgresLogSettings
    heads: ArchiveHeads
    folder: Path

    def append(self, values: list[bytes]) -> None:
        asyncio.run(_append(self.settings, values))

    def archive(self) -> Manifest:
        view = look_at(self.settings)
        archiver = Archiver(
            self.settings, self.folder, SIGNER, self.heads, size=SIZE, write=on_spark(self.spark, self.settings)
        )
        with archiver.open(view, 1, "archive-1") as manifest:
            archiver.archive(manifest, view.end)
            return manifest

    def archived(self) -> list[tuple[int, bytes | None]]:
        assert verify_archive(self.folder, SIGNER.public_key, self.heads.newest).findings == []
        manifest = load_manifest(self.folder, SIGNER.public_key)
        return [
            (record.offset, record.value)
            for segment in manifest.segments
            for record in read_segment(manifest.segments_folder, segment.facts)
        ]


async def _append(settings: PostgresLogSettings, values: list[bytes]) -> None:
    """Append in batches of seven; returns once all of it is in the log."""
    log = open_log(settings)
    try:
        end, writer = await log.end_offset() + len(values), await log.open_writer()
        for start in range(0, len(values), 7):
            writer.append_all(values[start : start + 7])
            await asyncio.sleep(0.002)
        async with asyncio.timeout(20):
            while await log.end_offset() < end:
                await asyncio.sleep(0.01)
    finally:
        await log.close()


@pytest.fixture
def settings(make_database: MakeDatabase) -> PostgresLogSettings:
    """A new database with the store's tables and an empty log."""
    return asyncio.run(_new_log(make_database))


@pytest.fixture
def target(make_database: MakeDatabase) -> PostgresLogSettings:
    """A new database without a log."""
    return PostgresLogSettings(conninfo=asyncio.run(_new_database(make_database)), single_server=True)


@pytest.fixture
def world(spark: SparkSession, settings: PostgresLogSettings, tmp_path: Path) -> World:
    return World(spark, settings, ArchiveHeads(settings.conninfo), tmp_path / "archive")


async def _new_database(make_database: MakeDatabase) -> str:
    return await make_database()


async def _new_log(make_database: MakeDatabase) -> PostgresLogSettings:
    dsn = await make_database()
    await migrate(dsn, 1)
    await install(dsn, partition_records=PARTITION_RECORDS)
    return PostgresLogSettings(conninfo=dsn, single_server=True)


@pytest.mark.thorough
def test_the_log_is_archived_by_ranges_and_the_archive_goes_on(world: World) -> None:
    """Goal: all of the log, once, with positions. Method: archive, append, archive again; ranges cut within appends."""
    world.append(VALUES)
    manifest = world.archive()
    assert world.archived() == list(enumerate(VALUES))
    assert manifest.position == read_records(begin(look_at(world.settings).topic_id), list(enumerate(VALUES))).position
    world.append(VALUES[1:4])
    again = world.archive()
    assert world.archived() == list(enumerate([*VALUES, *VALUES[1:4]]))
    assert world.heads.newest("archive-1") == again.head


def test_spark_reads_rebuilds_and_audits_from_the_log(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: every job on Spark reads this log itself. Method: a frame in three parts; slices of four records; rebuild
    and audit, against a replica's index."""
    values = log_values()
    world.append(values)
    with monkeypatch.context() as small:
        small.setattr(slices, "SLICE_RECORDS", 4)
        assert records(served_log(world.settings)) == values
        assert records(served_log(world.settings, until_offset=5)) == values[:6]
    rows = log_frame(world.spark, world.settings, 1, len(values), splits=3).withColumn("part", F.spark_partition_id())
    found = rows.collect()
    assert [(row.offset, bytes(row.value)) for row in found] == list(enumerate(values))[1:]
    assert len({row.part for row in found}) == 3
    with pytest.raises(ConfigError, match=r"log\.kind is postgres"):
        log_frame(world.spark, world.settings, 0, 1, connector="spark")
    log = served_log(world.settings)
    rebuild_index(world.spark, log, tmp_path / "index", tmp_path / "rebuild", ranges=2)
    index = RocksIndex(tmp_path / "index")
    entries, position = list(index.entries()), index.position()
    index.close()
    expected = by_replica(values)
    assert entries == expected.entries
    assert position is not None and position.topic_id == look_at(world.settings).topic_id
    assert (position.offset, position.digest) == (expected.position.offset, expected.position.digest)
    report = audit_log(world.spark, log, tmp_path / "audit", Scope(), now_us=7)
    assert report.clean
    assert report.watermark is not None and report.watermark.offset == len(values) - 1


# ---- restore ----


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """The records, one a second, in segments of fifty: as the archive of a log of any kind."""
    return make_archive(tmp_path_factory.mktemp("restore") / "archive", VALUES, 50)[0]


def restore(archive: Manifest, target: PostgresLogSettings, until: Until = ALL, **options: object) -> None:
    plan = plan_restore(archive, SIGNER.public_key, target, until, **options)  # type: ignore[arg-type]
    run_restore(archive, plan, target, lambda: 7, lambda count: None)


def rows(settings: PostgresLogSettings) -> list[tuple[int, int, bytes | None]]:
    view = look_at(settings)
    return [
        (offset, time_ms, value)
        for part in open_log_admin(settings).stretch(0, view.end)
        for offset, (time_ms, value) in enumerate(zip(part.times_ms, part.values, strict=True), part.first_offset)
    ]


def test_a_restored_log_has_the_very_records(archive: Manifest, target: PostgresLogSettings) -> None:
    """Goal: offset, time and value are what they were, from whatever kind of log. Method: restore, read all back."""
    restore(archive, target)
    assert rows(target) == [(at, TIME_MS + 1_000 * at, value) for at, value in enumerate(VALUES)]
    asyncio.run(_append(target, VALUES[:3]))  # it goes on as any log does
    assert [value for _, _, value in rows(target)] == [*VALUES, *VALUES[:3]]


@pytest.mark.thorough
def test_a_restore_goes_on_after_its_own_records_and_after_no_others(
    archive: Manifest, target: PostgresLogSettings
) -> None:
    """Goal: a killed restore is repeated. Method: restore the beginning, then all; a foreign record; a second time."""
    restore(archive, target, Until(offset=70))
    with pytest.raises(RestoreRefused, match="--resume"):
        restore(archive, target)
    restore(archive, target, resume=True)
    assert compare(archive, target, len(VALUES)).first_difference is None
    asyncio.run(_append(target, [b"foreign"]))
    with pytest.raises(RestoreRefused):
        restore(archive, target, resume=True)


@pytest.mark.thorough
def test_somebody_who_appends_meanwhile_ends_the_restore(archive: Manifest, target: PostgresLogSettings) -> None:
    """Goal: no record comes to lie at another's offset. Method: append between two transactions of a restore."""

    def given() -> Iterator[StoredRecord]:
        for at, value in enumerate(VALUES):
            if at == PARTITION_RECORDS + 1:
                asyncio.run(_append(target, [b"foreign"]))
            yield StoredRecord(at, TIME_MS, None, value)

    asyncio.run(install(target.conninfo, partition_records=PARTITION_RECORDS))
    with pytest.raises(RestoreRefused, match="does not end at offset 50"):
        refill_log(target, given(), 0, len(VALUES), lambda count: None)
    odd = StoredRecord(51, TIME_MS, b"key", b"value")
    with pytest.raises(RestoreRefused, match="keys or headers"):
        refill_log(target, [odd], 51, 52, lambda count: None)
    with pytest.raises(RestoreRefused, match="repeat with --resume"):
        refill_log(target, [StoredRecord(51, TIME_MS, None, b"v")], 51, 60, lambda count: None)


@pytest.mark.thorough
def test_a_lost_log_is_restored_and_adopted(
    world: World, target: PostgresLogSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a lost log comes back under database, index and archive, by the commands. Method: publish, archive, drop
    the schema, restore as the owner, adopt; the restored log in another database is refused as another one."""
    world.append(VALUES)
    config = _configured(world, tmp_path)
    monkeypatch.setattr(type(world.spark), "stop", lambda session: None)
    monkeypatch.setattr(shared, "quiet_libraries", lambda: None)

    def types(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--config", str(config)])
        assert result.exit_code == 0, result.output + repr(result.exception)
        return result.output

    types("archive", "run")
    settings = load_config(config)
    before = look_at(settings.log.settings).topic_id
    position = read_records(begin(before), list(enumerate(VALUES))).position
    _publish(settings.conninfo(), encode_position(position), position.offset, position.topic_id)
    index = RocksIndex(_made(settings.replica_dir("r1")) / "index")
    index.write({}, position)
    index.close()
    with psycopg.connect(world.settings.conninfo, autocommit=True) as owner:
        owner.execute("DROP SCHEMA notary_log CASCADE")
    monkeypatch.chdir(tmp_path)
    types("restore", "run", "--to-servers", target.conninfo)
    assert [path.name[:19] for path in tmp_path.glob("restore-*.json")] == ["restore-notary_log-"]
    types("restore", "run", "--evidence", "evidence.json")
    after = look_at(settings.log.settings).topic_id
    assert after not in (before, look_at(target).topic_id)
    types("restore", "adopt", "--name", "r1")
    index = RocksIndex(settings.replica_dir("r1") / "index")
    found = index.position()
    index.close()
    assert found is not None and (found.topic_id, found.offset) == (after, len(VALUES) - 1)
    world.append(VALUES[:1])
    assert "1 records" in types("archive", "run")
    types("log", "check")


def _configured(world: World, folder: Path) -> Path:
    database = conninfo_to_dict(world.settings.conninfo)["dbname"]
    create_key(folder / "notary.key")
    (folder / "parties.toml").write_text("[parties]\n")
    values = {
        "data_dir": "replicas",
        "notary_key_file": "notary.key",
        "endpoint": {"host": "127.0.0.1", "port": 1},
        "replicas": [{"name": "r1", "host": "127.0.0.1", "api_port": 2, "health_port": 3}],
        "database": {"conninfo": world.settings.conninfo, "scope": database},
        "log": {"kind": "postgres", "postgres": {"conninfo": world.settings.conninfo, "single_server": True}},
    }
    (folder / "notary.toml").write_text(render_config(values, "test"))
    return folder / "notary.toml"
