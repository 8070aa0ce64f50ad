"""The second site: copies of the archive, and index checkpoints that belong to it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import ClassVar

import pytest

from pipeline.archive.copy import copy_archive
from pipeline.archive.layout import MANIFEST_NAME
from pipeline.archive.manifest import Manifest, load_manifest
from pipeline.archive.segment import parquet_path
from pipeline.checkpoints import layout
from pipeline.checkpoints.layout import INDEX_NAME
from pipeline.checkpoints.ship import seed_index, ship_checkpoint, verify_checkpoint
from replica.index.rocks import verify_index
from replica.notary.errors import ArchiveDamaged, ArchiveMismatch, PlaceUnavailable
from replica.notary.places import Place, Remote, inside
from tests.contracts.shipping_contract import ShippingContract, ShippingToObjects, checkpoint_of
from tests.worlds.archive_world import SIGNER, make_archive, some_log, verified
from tests.worlds.folder_store import FolderStore
from tests.worlds.stores import FaultyStore, MemoryStore

VALUES = some_log(35)
SITE = Remote("s3a://bucket/site")


@pytest.fixture
def archive(tmp_path: Path) -> Manifest:
    """A whole archive of four segments."""
    return make_archive(tmp_path / "archive", VALUES)[0]


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


class TestShippingToAFolder(ShippingContract):
    STEPS: ClassVar[Mapping[str, int]] = {"_copy": 0, "write_whole": 0}

    @pytest.fixture
    def site(self, tmp_path: Path) -> Place:
        return tmp_path / "site"

    def contents(self, place: Place) -> dict[str, bytes]:
        assert isinstance(place, Path)
        return {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}

    def put(self, place: Place, name: str, content: bytes | None) -> None:
        assert isinstance(place, Path)
        (place / name).unlink(missing_ok=True)
        if content is not None:
            (place / name).write_bytes(content)

    def test_a_further_file_is_not_taken_along(self, archive: Manifest, site: Place, tmp_path: Path) -> None:
        """Goal: a folder is the one that was shipped. Method: put a file there that the label does not name."""
        shipped = ship_checkpoint(checkpoint_of(tmp_path, VALUES), site, archive, SIGNER)
        self.put(shipped, f"{INDEX_NAME}/further.sst", b"table")
        with pytest.raises(ArchiveDamaged, match="is not the file that was shipped"):
            verify_checkpoint(shipped, archive, SIGNER.public_key)


class TestShippingToObjects(ShippingToObjects):
    @pytest.fixture
    def site(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
        """A store in a folder, so that a place is within another."""
        monkeypatch.setattr(layout, "open_store", lambda place: FolderStore(tmp_path / place.partition("://")[2]))
        return SITE


@pytest.mark.parametrize("seed", range(5))
def test_a_checkpoint_is_shipped_through_a_store_that_fails(
    archive: Manifest, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: 503s and lost answers cost time only. Method: a store that does each by chance; who gives up goes on."""
    store = FaultyStore(MemoryStore(locked=True), Random(seed), refused=0.2, lost=0.2)
    monkeypatch.setattr(layout, "open_store", lambda place: store)
    monkeypatch.setattr(layout.time, "sleep", lambda seconds: None)
    checkpoint = checkpoint_of(tmp_path, VALUES)
    shipped = inside(SITE, f"{len(VALUES) - 1:019d}")
    while True:
        with suppress(PlaceUnavailable):
            assert ship_checkpoint(checkpoint, SITE, archive, SIGNER) == shipped
            break
        with suppress(PlaceUnavailable, ArchiveDamaged):  # the label may be there, and its answer lost for good
            verify_checkpoint(shipped, archive, SIGNER.public_key)
            break
    seed_index(shipped, tmp_path / "index", "new", archive, SIGNER.public_key, check=lambda at: None)
    assert verify_index(tmp_path / "index").digest == verify_index(checkpoint).digest
