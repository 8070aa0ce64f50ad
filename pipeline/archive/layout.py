"""How an archive is kept in its place: as the files of a local folder, or as objects that are written once.

A folder has `manifest.jsonl`, a folder `segments`, and a lock that keeps a second archiver out. A store of objects has
the manifest in objects (lines.py) and segments named by offsets and content; a second archiver finds its next line
written by the other. The lines are the same in both, so whoever verifies them does not ask where they were.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

import pyarrow as pa

from pipeline.archive.lines import FOLDER, ObjectLines
from pipeline.archive.segment import (
    DIGEST_BYTES,
    PARTIAL,
    SegmentDamaged,
    SegmentFacts,
    digests_path,
    find_damage,
    parquet_path,
    segment_name,
    sync_file,
    write_segment,
)
from pipeline.judging.plan import Survey
from pipeline.places.file import open_object
from pipeline.places.open import open_store
from pipeline.places.store import ObjectExists, ObjectMissing, Store, again, fetch, keep_file
from replica.notary.codes import Code
from replica.notary.errors import ArchiveContended, ArchiveDamaged, ConfigError, NotaryError, PlaceAccessDenied
from replica.notary.places import Place, Remote
from replica.notary.secret_files import open_not_for_others

LOCK_NAME = "archive.lock"
MANIFEST_NAME = "manifest.jsonl"
SEGMENTS_NAME = "segments"
_SEGMENT = re.compile(rf"{SEGMENTS_NAME}/(\d{{19}})-\d{{19}}\.[0-9a-f]{{64}}\.(?:parquet|digests)")


class Layout(Protocol):
    """One archive in its place. Pickled into Spark's tasks. Calls may raise PlaceUnavailable and PlaceAccessDenied."""

    @property
    def manifest(self) -> str:
        """Where the manifest is, for people."""

    @property
    def folder(self) -> Path:
        """The local folder that it is kept in. Raises ConfigError (PLACE_UNKNOWN) when it is kept elsewhere."""

    def alone(self) -> AbstractContextManager[None]:
        """While the context lasts no other archiver can add lines unnoticed. Raises ArchiveContended."""

    def prepare(self) -> None:
        """Make the place ready for an archiver: what a killed one left half written is removed."""

    def read_lines(self) -> bytes | None:
        """The manifest's lines; None if there is no manifest. Raises ArchiveDamaged."""

    def append(self, number: int, text: bytes) -> None:
        """Keep whole lines, the first of which has this number; durable on return.

        Raises ArchiveContended when another archiver added lines meanwhile.
        """

    def refuse_unsafe(self) -> None:
        """Raise ConfigError (PLACE_UNSAFE) where two archivers could both append. The manifest has lines."""

    def write(self, batches: Iterator[pa.RecordBatch]) -> tuple[SegmentFacts, list[Survey]] | None:
        """Write one segment; see `write_segment`. Its files are durable on return."""

    def take(self, facts: SegmentFacts, source: Path) -> None:
        """Keep a segment's two files, of which a local folder has copies; durable on return. Raises ArchiveDamaged."""

    def has(self, facts: SegmentFacts) -> bool:
        """Whether both files of a segment are there, and whole as far as can be found out without fetching them."""

    def at_hand(self, facts: SegmentFacts) -> AbstractContextManager[Path]:
        """A local folder with a segment's two files, those that exist, while the context lasts."""

    def digests(self, facts: SegmentFacts) -> bytes:
        """The digests of a segment's records. Raises ArchiveDamaged when they are missing."""

    def records_name(self, facts: SegmentFacts) -> str:
        """What `open_records` calls the file with a segment's records."""

    def open_records(self, name: str) -> pa.NativeFile:
        """That file, of which any part can be read. Raises OSError when it cannot be read."""

    def remove_orphans(self, named: Sequence[SegmentFacts]) -> None:
        """Remove what killed archivers left: files of segments that the manifest, with these segments, does not name.

        Nothing is removed that another archiver may be about to name.
        """


def layout_of(place: Place | Layout) -> Layout:
    """How an archive in this place is kept; a layout is given back as it is."""
    if isinstance(place, Remote):
        return ObjectLayout(place, partial(open_store, place))
    return FolderLayout(place) if isinstance(place, Path) else place


@dataclass(frozen=True, slots=True)
class FolderLayout:
    """See Layout."""

    folder: Path

    @property
    def manifest(self) -> str:
        return str(self._manifest)

    @property
    def _manifest(self) -> Path:
        return self.folder / MANIFEST_NAME

    @property
    def _segments(self) -> Path:
        return self.folder / SEGMENTS_NAME

    @contextmanager
    def alone(self) -> Iterator[None]:
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise ArchiveContended(f"another archiver writes to {self.folder}") from None
        finally:
            os.close(handle)

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._segments.mkdir(mode=0o750, exist_ok=True)  # records name parties and transactions, as the manifest does
        if not self._manifest.exists():
            return
        raw = self._manifest.read_bytes()
        whole = raw.rfind(b"\n") + 1
        if whole != len(raw):
            with self._manifest.open("r+b") as file:
                file.truncate(whole)
                os.fsync(file.fileno())

    def read_lines(self) -> bytes | None:
        try:
            return self._manifest.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _unreadable(self.manifest, error) from None

    def append(self, number: int, text: bytes) -> None:
        with open_not_for_others(self._manifest, "ab") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        sync_file(self.folder)

    def refuse_unsafe(self) -> None:
        return  # the lock suffices

    def write(self, batches: Iterator[pa.RecordBatch]) -> tuple[SegmentFacts, list[Survey]] | None:
        return write_segment(self._segments, batches)

    def take(self, facts: SegmentFacts, source: Path) -> None:
        for path in (parquet_path, digests_path):
            end = path(self._segments, facts.first, facts.last)
            copy = end.with_name(f"{end.name}{PARTIAL}")
            try:
                shutil.copyfile(path(source, facts.first, facts.last), copy)
            except FileNotFoundError:
                raise ArchiveDamaged(f"{end.name} is missing") from None
            sync_file(copy)
            copy.replace(end)
        sync_file(self._segments)

    def has(self, facts: SegmentFacts) -> bool:
        try:
            find_damage(self._segments, facts)
        except (SegmentDamaged, OSError):
            return False
        return True

    def at_hand(self, facts: SegmentFacts) -> AbstractContextManager[Path]:
        return nullcontext(self._segments)

    def digests(self, facts: SegmentFacts) -> bytes:
        path = digests_path(self._segments, facts.first, facts.last)
        try:
            return path.read_bytes()
        except OSError as error:
            raise _unreadable(path, error) from None

    def records_name(self, facts: SegmentFacts) -> str:
        return str(parquet_path(self._segments, facts.first, facts.last))

    def open_records(self, name: str) -> pa.NativeFile:
        return pa.OSFile(name, "rb")

    def remove_orphans(self, named: Sequence[SegmentFacts]) -> None:
        paths = {path(self._segments, one.first, one.last) for one in named for path in (parquet_path, digests_path)}
        for path in self._segments.iterdir():
            if path not in paths and path.suffix in (PARTIAL, ".parquet", ".digests"):
                path.unlink()


@dataclass(frozen=True, slots=True)
class ObjectLayout:
    """See Layout. `place`: its name; `opened`: opens the store, in each process anew; `sleep` gets seconds."""

    place: str
    opened: Callable[[], Store]
    sleep: Callable[[float], None] = time.sleep

    @property
    def manifest(self) -> str:
        return f"{self.place}/{FOLDER}"

    @property
    def folder(self) -> Path:
        problem = f"{self.place}: this needs the archive in a local folder; `notary recovery copy` makes one"
        raise ConfigError(problem, Code.PLACE_UNKNOWN)

    def _lines(self) -> ObjectLines:
        return ObjectLines(self.opened(), self.sleep)

    def alone(self) -> AbstractContextManager[None]:
        return nullcontext()  # a second archiver fails when it appends

    def prepare(self) -> None:
        return  # nothing is ever half written

    def read_lines(self) -> bytes | None:
        return self._lines().read() or None

    def append(self, number: int, text: bytes) -> None:
        self._lines().append(number, text)

    def refuse_unsafe(self) -> None:
        self._lines().refuse_unsafe()

    def write(self, batches: Iterator[pa.RecordBatch]) -> tuple[SegmentFacts, list[Survey]] | None:
        with TemporaryDirectory(prefix="segment-") as name:
            folder = Path(name)
            written = write_segment(folder, batches)
            if written is not None:
                self.take(written[0], folder)
            return written

    def take(self, facts: SegmentFacts, source: Path) -> None:
        self._send(_digests_name(facts), digests_path(source, facts.first, facts.last), facts.digests_sha256)
        self._send(_parquet_name(facts), parquet_path(source, facts.first, facts.last), facts.parquet_sha256)

    def _send(self, name: str, file: Path, digest: str) -> None:
        try:
            keep_file(self.opened(), name, file, digest, self.sleep)
        except ObjectExists:
            raise ArchiveDamaged(f"{self.place}/{name} is there, with other content than its name says") from None
        except FileNotFoundError:
            raise ArchiveDamaged(f"{file.name} is missing") from None

    def has(self, facts: SegmentFacts) -> bool:
        store = self.opened()
        sizes = {_parquet_name(facts): facts.parquet_bytes, _digests_name(facts): facts.count * DIGEST_BYTES}
        try:
            return all(again(partial(store.size, name), self.sleep) == size for name, size in sizes.items())
        except ObjectMissing:
            return False

    @contextmanager
    def at_hand(self, facts: SegmentFacts) -> Iterator[Path]:
        with TemporaryDirectory(prefix="segment-") as name:
            folder, store = Path(name), self.opened()
            for kept, path in ((_parquet_name, parquet_path), (_digests_name, digests_path)):
                with suppress(ObjectMissing):  # whoever reads the segment finds that its file is missing
                    fetch(store, kept(facts), path(folder, facts.first, facts.last), self.sleep)
            yield folder

    def digests(self, facts: SegmentFacts) -> bytes:
        store, name = self.opened(), _digests_name(facts)
        try:
            return again(lambda: store.read(name), self.sleep)
        except ObjectMissing:
            raise ArchiveDamaged(f"{self.place}/{name} is missing") from None

    def records_name(self, facts: SegmentFacts) -> str:
        return _parquet_name(facts)

    def open_records(self, name: str) -> pa.NativeFile:
        return pa.PythonFile(open_object(self.opened(), name, self.sleep), mode="r")

    def remove_orphans(self, named: Sequence[SegmentFacts]) -> None:
        """See Layout. Another archiver may have written segments after the last named one, and sign for them next.

        Those from earlier on nobody can name any more: their lines would follow lines that are there.
        """
        store = self.opened()
        kept = {name(one) for one in named for name in (_parquet_name, _digests_name)}
        following = named[-1].last + 1 if named else 0
        for name in again(lambda: store.names(f"{SEGMENTS_NAME}/"), self.sleep):
            found = _SEGMENT.fullmatch(name)
            if name in kept or found is None or int(found[1]) >= following:
                continue
            if not again(partial(store.remove, name), self.sleep):
                return  # kept for good, and so are the others; they cost room only


def _parquet_name(facts: SegmentFacts) -> str:
    return f"{SEGMENTS_NAME}/{segment_name(facts.first, facts.last)}.{facts.parquet_sha256}.parquet"


def _digests_name(facts: SegmentFacts) -> str:
    return f"{SEGMENTS_NAME}/{segment_name(facts.first, facts.last)}.{facts.digests_sha256}.digests"


def _unreadable(path: Path | str, error: OSError) -> NotaryError:
    """What is missing is a right, or it is damage."""
    kind = PlaceAccessDenied if isinstance(error, PermissionError) else ArchiveDamaged
    return kind(f"{path} cannot be read: {error.strerror}")
