"""A store in a local folder, for tests. A file appears under its name only when it is whole and on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from pipeline.places.store import ObjectExists, ObjectMissing
from replica.notary.errors import PlaceAccessDenied, PlaceUnavailable
from replica.notary.secret_files import open_not_for_others

PARTIAL = ".partial"
_PIECE_BYTES = 1 << 20


class FolderStore:
    """See Store. The folder is made by the first object. Its file system must have hard links."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def names(self, under: str) -> list[str]:
        found = (path for path in self._folder.rglob("*") if path.is_file() and path.suffix != PARTIAL)
        return sorted(name for path in found if (name := path.relative_to(self._folder).as_posix()).startswith(under))

    def size(self, name: str) -> int:
        with _errors_of(name):
            return self._path(name).stat().st_size

    def read(self, name: str) -> bytes:
        with _errors_of(name):
            return self._path(name).read_bytes()

    def read_range(self, name: str, start: int, length: int) -> bytes:
        with _errors_of(name), self._path(name).open("rb") as file:
            file.seek(start)
            return file.read(length)

    def create(self, name: str, parts: Iterable[bytes]) -> None:
        self._write(name, parts, os.link)  # unlike a rename it fails where the name is taken

    def send(self, name: str, file: Path) -> None:
        with file.open("rb") as pieces:
            self.create(name, iter(lambda: pieces.read(_PIECE_BYTES), b""))

    def replace(self, name: str, file: Path) -> None:
        self._write(name, [file.read_bytes()], os.replace)

    def _write(self, name: str, parts: Iterable[bytes], give_name: Callable[[Path, Path], None]) -> None:
        path = self._path(name)
        partial = path.with_name(f"{uuid4().hex}{PARTIAL}")
        try:
            with _errors_of(name):
                path.parent.mkdir(parents=True, exist_ok=True)
                with open_not_for_others(partial, "xb") as file:
                    for part in parts:
                        file.write(part)
                    file.flush()
                    os.fsync(file.fileno())
                give_name(partial, path)
                _sync_folders(path.parent, self._folder)
        finally:
            partial.unlink(missing_ok=True)

    def remove(self, name: str) -> bool:
        self._path(name).unlink(missing_ok=True)
        return True

    def _path(self, name: str) -> Path:
        return self._folder / name


def _sync_folders(folder: Path, root: Path) -> None:
    """Bring the names in a folder, and those of the folders that lead to it, to the disk."""
    while True:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        if folder in (root.parent, folder.parent):
            return
        folder = folder.parent


@contextmanager
def _errors_of(name: str) -> Iterator[None]:
    try:
        yield
    except FileExistsError:
        raise ObjectExists(name) from None
    except FileNotFoundError:
        raise ObjectMissing(name) from None
    except PermissionError as error:
        raise PlaceAccessDenied(f"{error.filename}: {error.strerror}") from None
    except OSError as error:
        raise PlaceUnavailable(f"{error.filename}: {error.strerror}") from None
