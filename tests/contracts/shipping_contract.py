"""The contract of a place that index checkpoints are shipped to."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pipeline.archive.manifest import Manifest
from pipeline.checkpoints import layout
from pipeline.checkpoints.layout import INDEX_NAME, LABEL_NAME
from pipeline.checkpoints.ship import seed_index, ship_checkpoint, verify_checkpoint
from replica.following.apply import Applier
from replica.index.rocks import RocksIndex, verify_index
from replica.notary.errors import ArchiveDamaged, ArchiveMismatch, ConfigError, LogRefused
from replica.notary.places import Place, inside
from tests.worlds.archive_world import SIGNER, make_archive, some_log
from tests.worlds.notary_logs import TOPIC

VALUES = some_log(35)


def checkpoint_of(folder: Path, values: list[bytes]) -> Path:
    """A checkpoint of the index of a log."""
    index = RocksIndex(folder / "live")
    Applier(index, TOPIC).apply(list(enumerate(values)))
    index.checkpoint(folder / "checkpoint")
    index.close()
    return folder / "checkpoint"


def _killed_after(calls: int, step: Callable[..., None]) -> Callable[..., None]:
    left = iter(range(calls))

    def killed(*arguments: Any) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        step(*arguments)

    return killed


class ShippingContract:
    """A class that inherits it provides the fixture `site`, a place that nobody has used, `contents` and `put`.

    STEPS: what layout.py calls in turn, and how many calls of it are made before a kill.
    """

    STEPS: ClassVar[Mapping[str, int]]

    @abstractmethod
    def contents(self, place: Place) -> dict[str, bytes]:
        """Every file or object in a place, by name."""

    @abstractmethod
    def put(self, place: Place, name: str, content: bytes | None) -> None:
        """Damage: a file of a place has other content, or None: it is gone."""

    @pytest.fixture
    def archive(self, tmp_path: Path) -> Manifest:
        """A whole archive of four segments."""
        return make_archive(tmp_path / "archive", VALUES)[0]

    def test_a_shipped_checkpoint_becomes_a_replicas_index(
        self, archive: Manifest, site: Place, tmp_path: Path
    ) -> None:
        """Goal: a new replica starts from it. Method: ship, seed under another topic id, compare the content."""
        checkpoint = checkpoint_of(tmp_path, VALUES[:25])
        (checkpoint / "LOG").write_text("of the process that had it open\n")
        shipped = ship_checkpoint(checkpoint, site, archive, SIGNER)
        assert shipped == inside(site, f"{24:019d}")
        assert verify_checkpoint(shipped, archive, SIGNER.public_key).offset == 24
        assert not any("LOG" in name for name in self.contents(shipped))
        seen: list[int] = []
        index = tmp_path / "r1" / "index"
        position = seed_index(
            shipped, index, "new", archive, SIGNER.public_key, check=lambda at: seen.append(at.offset)
        )
        assert (position.topic_id, position.offset, seen) == ("new", 24, [24])
        assert verify_index(index).digest == verify_index(checkpoint).digest
        assert verify_index(index).position == position
        with pytest.raises(ConfigError):
            seed_index(shipped, index, "new", archive, SIGNER.public_key, check=lambda at: None)

    def test_a_second_shipment_of_a_position_changes_nothing(
        self, archive: Manifest, site: Place, tmp_path: Path
    ) -> None:
        """Goal: what is shipped stays. Method: the index of another replica, of the same position."""
        shipped = ship_checkpoint(checkpoint_of(tmp_path, VALUES), site, archive, SIGNER)
        before = self.contents(site)
        (tmp_path / "other").mkdir()
        other = checkpoint_of(tmp_path / "other", VALUES)
        (other / "further").write_text("no file of the first one")
        with pytest.raises(ConfigError, match="exists already"):
            ship_checkpoint(other, site, archive, SIGNER)
        assert self.contents(site) == before
        verify_checkpoint(shipped, archive, SIGNER.public_key)

    def test_a_killed_shipment_is_no_checkpoint_and_no_obstacle(
        self, archive: Manifest, site: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Goal: whole or not at all. Method: an end before each of the steps; then the index of another replica."""
        checkpoint, shipped = checkpoint_of(tmp_path, VALUES), inside(site, f"{len(VALUES) - 1:019d}")
        for step, calls in self.STEPS.items():
            with monkeypatch.context() as patched:
                patched.setattr(layout, step, _killed_after(calls, getattr(layout, step)))
                with pytest.raises(KeyboardInterrupt):
                    ship_checkpoint(checkpoint, site, archive, SIGNER)
            with pytest.raises(ArchiveDamaged, match="is not one that the archive's key signed"):
                verify_checkpoint(shipped, archive, SIGNER.public_key)
        (checkpoint / "further").write_text("no file of the first one")
        assert ship_checkpoint(checkpoint, site, archive, SIGNER) == shipped
        assert verify_checkpoint(shipped, archive, SIGNER.public_key).offset == len(VALUES) - 1

    def test_a_changed_checkpoint_is_refused(self, archive: Manifest, site: Place, tmp_path: Path) -> None:
        """Goal: no index but the one that was shipped. Method: change, swap and lose a file; change and lose the label;
        verify, and seed, which leaves no index."""
        shipped = ship_checkpoint(checkpoint_of(tmp_path, VALUES), site, archive, SIGNER)
        whole = self.contents(shipped)
        table = max((name for name in whole if name.startswith(INDEX_NAME)), key=lambda name: len(whole[name]))
        other = next(name for name in whole if name.startswith(INDEX_NAME) and name != table)
        label = whole[LABEL_NAME]
        damages: list[tuple[str, bytes | None]] = [
            (table, whole[table][:-1] + bytes([whole[table][-1] ^ 1])),
            (table, whole[other]),
            (table, None),
            (LABEL_NAME, label.replace(b'"entries":', b'"entries":1')),
            (LABEL_NAME, None),
        ]
        for name, content in damages:
            self.put(shipped, name, content)
            self._refused(shipped, archive, tmp_path)
            self.put(shipped, name, whole[name])
        verify_checkpoint(shipped, archive, SIGNER.public_key)

    @staticmethod
    def _refused(shipped: Place, archive: Manifest, folder: Path) -> None:
        with pytest.raises(ArchiveDamaged):
            verify_checkpoint(shipped, archive, SIGNER.public_key)
        with pytest.raises(ArchiveDamaged):
            seed_index(shipped, folder / "index", "new", archive, SIGNER.public_key, check=lambda at: None)
        assert not (folder / "index").exists()

    def test_a_checkpoint_of_another_log_is_not_shipped(self, archive: Manifest, site: Place, tmp_path: Path) -> None:
        """Goal: no index but this log's. Method: ship another log's, and one that the archive does not reach yet."""
        for name, values in (("foreign", VALUES[:-2] + VALUES[1:3]), ("ahead", [*VALUES, VALUES[1]])):
            (tmp_path / name).mkdir()
            with pytest.raises(ArchiveMismatch):
                ship_checkpoint(checkpoint_of(tmp_path / name, values), site, archive, SIGNER)
        assert self.contents(site) == {}

    def test_a_topic_without_the_record_is_refused(self, archive: Manifest, site: Place, tmp_path: Path) -> None:
        """Goal: an index never goes before its log. Method: seed against a topic that has another record there."""
        shipped = ship_checkpoint(checkpoint_of(tmp_path, VALUES), site, archive, SIGNER)

        def refuse(position: object) -> None:
            raise LogRefused("another record")

        with pytest.raises(LogRefused):
            seed_index(shipped, tmp_path / "r1" / "index", "new", archive, SIGNER.public_key, check=refuse)
        assert not (tmp_path / "r1" / "index").exists()


class ShippingToObjects(ShippingContract):
    """The same in a store of objects, which `layout.open_store` opens."""

    STEPS: ClassVar[Mapping[str, int]] = {"keep_file": 2, "keep": 0}

    def contents(self, place: Place) -> dict[str, bytes]:
        store = layout.open_store(place)
        return {name: store.read(name) for name in store.names("")}

    def put(self, place: Place, name: str, content: bytes | None) -> None:
        store = layout.open_store(place)
        store.remove(name)
        if content is not None:
            store.create(name, [content])
