"""How a shipped checkpoint is kept in its place: as the files of a local folder, or as objects that are written once.

In both it is there only when it is whole: the folder gets its name last, and the last of the objects is the label. In a
store of objects each file's name ends with its SHA-256, so that what a killed shipment left is no obstacle to the next.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.archive.segment import PARTIAL, sha256_of, sync_file, write_whole
from pipeline.places.open import open_store
from pipeline.places.store import ObjectExists, ObjectMissing, Store, again, digest_of, fetch, keep, keep_file
from replica.notary.errors import ArchiveDamaged, ConfigError
from replica.notary.places import Place, Remote

LABEL_NAME = "checkpoint.json"
INDEX_NAME = "index"

Digests = Mapping[str, str]  # SHA-256 in hexadecimal, by the name of a file in the index


class CheckpointLayout(Protocol):
    """One shipped checkpoint in its place. Calls may raise PlaceUnavailable and PlaceAccessDenied."""

    @property
    def place(self) -> Path | str:
        """Where it is, for people."""

    def refuse_taken(self) -> None:
        """Raise ConfigError when there is a checkpoint already. One whose shipment was killed is not there."""

    def keep(self, checkpoint: Path, files: Digests, label: bytes) -> None:
        """Keep these files of a local folder, and then the label. Raises ConfigError, as `refuse_taken` does."""

    def label(self) -> bytes:
        """Raises FileNotFoundError when there is no checkpoint, OSError when its label cannot be read."""

    def digests(self, files: Digests) -> dict[str, str]:
        """The SHA-256 of those of these files that are there. A folder's further files count as well."""

    def fetch(self, files: Digests, folder: Path) -> None:
        """Copy these files into a new local folder; nothing is verified. Raises FileNotFoundError."""


def checkpoint_layout(place: Place) -> CheckpointLayout:
    """How a checkpoint in this place is kept. Raises ConfigError."""
    if isinstance(place, Remote):
        return CheckpointObjects(place, open_store(place), time.sleep)
    return CheckpointFolder(place)


@dataclass(frozen=True, slots=True)
class CheckpointFolder:
    """See CheckpointLayout."""

    place: Path

    def refuse_taken(self) -> None:
        if self.place.exists():
            raise _taken(self.place)

    def keep(self, checkpoint: Path, files: Digests, label: bytes) -> None:
        draft = self.place.with_name(f"{self.place.name}{PARTIAL}")
        shutil.rmtree(draft, ignore_errors=True)
        _copy(checkpoint, files, draft / INDEX_NAME)
        write_whole(draft / LABEL_NAME, label)
        self.refuse_taken()
        draft.rename(self.place)
        sync_file(self.place.parent)

    def label(self) -> bytes:
        return (self.place / LABEL_NAME).read_bytes()

    def digests(self, files: Digests) -> dict[str, str]:
        return digests_in(self.place / INDEX_NAME)

    def fetch(self, files: Digests, folder: Path) -> None:
        _copy(self.place / INDEX_NAME, files, folder)


@dataclass(frozen=True, slots=True)
class CheckpointObjects:
    """See CheckpointLayout. `sleep` gets seconds."""

    place: str
    store: Store
    sleep: Callable[[float], None]

    def refuse_taken(self) -> None:
        try:
            again(lambda: self.store.size(LABEL_NAME), self.sleep)
        except ObjectMissing:
            return
        raise _taken(self.place)

    def keep(self, checkpoint: Path, files: Digests, label: bytes) -> None:
        for name, digest in files.items():
            kept = _object_name(name, digest)
            try:
                keep_file(self.store, kept, checkpoint / name, digest, self.sleep)
            except ObjectExists:
                raise ArchiveDamaged(f"{self.place}/{kept} has other content than its name says") from None
        try:
            keep(self.store, LABEL_NAME, label, self.sleep)
        except ObjectExists:
            raise _taken(self.place) from None

    def label(self) -> bytes:
        try:
            return again(lambda: self.store.read(LABEL_NAME), self.sleep)
        except ObjectMissing:
            raise FileNotFoundError(f"{self.place}/{LABEL_NAME} is missing") from None

    def digests(self, files: Digests) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, digest in files.items():
            try:
                found[name] = digest_of(self.store, _object_name(name, digest), self.sleep)
            except ObjectMissing:
                continue
        return found

    def fetch(self, files: Digests, folder: Path) -> None:
        for name, digest in files.items():
            kept, copy = _object_name(name, digest), folder / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                fetch(self.store, kept, copy, self.sleep)
            except ObjectMissing:
                raise FileNotFoundError(f"{self.place}/{kept} is missing") from None


def digests_in(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in a local folder."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path) for path in sorted(folder.rglob("*")) if path.is_file()
    }


def _object_name(name: str, digest: str) -> str:
    return f"{INDEX_NAME}/{name}.{digest}"


def _copy(source: Path, names: Digests, folder: Path) -> None:
    for name in names:
        copy = folder / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, copy)
        sync_file(copy)


def _taken(place: Path | str) -> ConfigError:
    return ConfigError(f"{place} exists already")
