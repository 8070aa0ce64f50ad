"""The second site: copies of the archive, and index checkpoints that belong to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.archive.copy import copy_archive
from pipeline.archive.layout import MANIFEST_NAME
from pipeline.archive.manifest import Manifest, load_manifest
from pipeline.archive.segment import parquet_path
from pipeline.checkpoints import INDEX_NAME, seed_index, ship_checkpoint, verify_checkpoint
from replica.index.rocks import RocksIndex, verify_index
from replica.notary.counted import CountedRequest
from replica.notary.errors import ArchiveDamaged, ArchiveMismatch, ConfigError, LogRefused
from replica.notary.position import begin
from replica.notary.reading import read_records
from tests.worlds.archive_world import SIGNER, make_archive, some_log, verified
from tests.worlds.notary_logs import TOPIC, judge_knowing

VALUES = some_log(35)


@pytest.fixture
def archive(tmp_path: Path) -> Manifest:
    """A whole archive of four segments."""
    return make_archive(tmp_path / "archive", VALUES)[0]


def checkpoint_of(folder: Path, values: list[bytes]) -> Path:
    """A checkpoint of the index of a log."""
    reading = read_records(begin(TOPIC), enumerate(values))
    requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
    _, added, _ = judge_knowing({}, requests)
    index = RocksIndex(folder / "live")
    index.parties.write({}, reading.position)
    index.write(added, reading.position)
    index.checkpoint(folder / "checkpoint")
    index.close()
    return folder / "checkpoint"


def test_a_copy_follows_the_archive(archive: Manifest, tmp_path: Path) -> None:
    """Goal: the second site has all that is archived. Method: copy, copy again, lose a file there, copy again."""
    site = tmp_path / "site"
    assert copy_archive(archive, site) == 4
    assert copy_archive(archive, site) == 0
    parquet_path(site / "segments", 10, 19).write_bytes(b"lost")
    assert copy_archive(archive, site) == 1
    _, heads = make_archive(tmp_path / "again", VALUES)
    assert verified(site, heads).findings == []
    assert load_manifest(site, SIGNER.public_key).head == archive.head


def test_a_killed_copy_names_nothing_that_is_not_there(archive: Manifest, tmp_path: Path) -> None:
    """Goal: a kill does no harm. Method: kill the copy behind the second segment, look, copy again."""
    site = tmp_path / "site"

    def kill(offset: int) -> None:
        if offset == 19:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_archive(archive, site, kill)
    assert not (site / MANIFEST_NAME).exists()
    assert copy_archive(archive, site) == 2


def test_another_archive_is_not_overwritten(archive: Manifest, tmp_path: Path) -> None:
    """Goal: a copy is of one archive. Method: copy over an archive of another log, and from a damaged one."""
    other, _ = make_archive(tmp_path / "other", some_log(12))
    with pytest.raises(ArchiveMismatch):
        copy_archive(archive, other.folder)
    parquet_path(archive.segments_folder, 10, 19).write_bytes(b"damaged")
    with pytest.raises(ArchiveDamaged, match="offset 10"):
        copy_archive(archive, tmp_path / "site")


def test_a_shipped_checkpoint_becomes_a_replicas_index(archive: Manifest, tmp_path: Path) -> None:
    """Goal: a new replica starts from it. Method: ship, seed under another topic id, compare the content."""
    checkpoint = checkpoint_of(tmp_path, VALUES[:25])
    shipped = ship_checkpoint(checkpoint, tmp_path / "site", archive, SIGNER)
    seen: list[int] = []
    index = tmp_path / "r1" / "index"
    position = seed_index(shipped, index, "new", archive, SIGNER.public_key, check=lambda at: seen.append(at.offset))
    assert (position.topic_id, position.offset, seen) == ("new", 24, [24])
    assert verify_index(index).digest == verify_index(checkpoint).digest
    assert verify_index(index).position == position
    opened = RocksIndex(index)
    assert opened.parties.position() == opened.commands.position() == position  # each table names its log
    opened.close()
    with pytest.raises(ConfigError):
        seed_index(shipped, index, "new", archive, SIGNER.public_key, check=lambda at: None)
    with pytest.raises(ConfigError):
        ship_checkpoint(checkpoint, tmp_path / "site", archive, SIGNER)


def test_a_changed_or_foreign_checkpoint_is_refused(archive: Manifest, tmp_path: Path) -> None:
    """Goal: no index but this log's. Method: change a file, change the label, ship another log's, one not archived."""
    (tmp_path / "a").mkdir()
    shipped = ship_checkpoint(checkpoint_of(tmp_path / "a", VALUES), tmp_path / "site", archive, SIGNER)
    table = next((shipped / INDEX_NAME).glob("*.sst"), None) or next((shipped / INDEX_NAME).glob("*.log"))
    raw = table.read_bytes()
    table.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    with pytest.raises(ArchiveDamaged, match="is not the file that was shipped"):
        verify_checkpoint(shipped, archive, SIGNER.public_key)
    table.write_bytes(raw)
    verify_checkpoint(shipped, archive, SIGNER.public_key)
    label = shipped / "checkpoint.json"
    label.write_bytes(label.read_bytes().replace(b'"entries":', b'"entries":1'))
    with pytest.raises(ArchiveDamaged, match="not one that the archive's key signed"):
        verify_checkpoint(shipped, archive, SIGNER.public_key)
    for name, values in (("foreign", VALUES[:-2] + VALUES[1:3]), ("ahead", [*VALUES, VALUES[1]])):
        (tmp_path / name).mkdir()
        with pytest.raises(ArchiveMismatch):
            ship_checkpoint(checkpoint_of(tmp_path / name, values), tmp_path / "site", archive, SIGNER)


def test_a_topic_without_the_record_is_refused(archive: Manifest, tmp_path: Path) -> None:
    """Goal: an index never goes before its log. Method: seed against a topic that has another record there."""
    shipped = ship_checkpoint(checkpoint_of(tmp_path, VALUES), tmp_path / "site", archive, SIGNER)

    def refuse(position: object) -> None:
        raise LogRefused("another record")

    with pytest.raises(LogRefused):
        seed_index(shipped, tmp_path / "r1" / "index", "new", archive, SIGNER.public_key, check=refuse)
    assert not (tmp_path / "r1" / "index").exists()
