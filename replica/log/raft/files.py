"""The files of one folder, as the log uses them: writes are durable after `sync`, names after `sync_names`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol

_MODE = 0o600


class Files(Protocol):
    """A flat folder. All calls raise OSError. One thread changes a file at a time; any may read."""

    def names(self) -> list[str]:
        """All files, in order."""

    def read(self, name: str) -> bytes:
        """A whole file."""

    def read_at(self, name: str, at: int, size: int) -> bytes:
        """`size` bytes from `at`; fewer at the end of the file."""

    def create(self, name: str) -> None:
        """Create an empty file; an existing one is emptied."""

    def reserve(self, name: str, size: int) -> None:
        """Make the file this long, zeros where nothing was written, on reserved space."""

    def write(self, name: str, at: int, data: bytes) -> None:
        """Write at a byte offset."""

    def sync(self, name: str) -> None:
        """Return once what was written to the file, and its length, are on disk."""

    def cut(self, name: str, size: int) -> None:
        """Truncate the file to `size` bytes."""

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing the one that had the name."""

    def remove(self, name: str) -> None:
        """Remove a file."""

    def sync_names(self) -> None:
        """Return once what was created, renamed and removed is on disk."""

    def close(self) -> None:
        """Close all files."""


class Folder:
    """Files on a real disk. Files that are written to stay open until they are closed, renamed or removed."""

    def __init__(self, path: Path) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._path = path
        self._open: dict[str, int] = {}

    def names(self) -> list[str]:
        return sorted(entry.name for entry in os.scandir(self._path) if entry.is_file())

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def read_at(self, name: str, at: int, size: int) -> bytes:
        with open(self._path / name, "rb", buffering=0) as file:  # other threads write
            return os.pread(file.fileno(), size, at)

    def create(self, name: str) -> None:
        self._close(name)
        self._open[name] = os.open(self._path / name, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)

    def reserve(self, name: str, size: int) -> None:
        os.posix_fallocate(self._fd(name), 0, size)

    def write(self, name: str, at: int, data: bytes) -> None:
        left = memoryview(data)
        while left:
            written = os.pwrite(self._fd(name), left, at)
            left, at = left[written:], at + written

    def sync(self, name: str) -> None:
        os.fdatasync(self._fd(name))

    def cut(self, name: str, size: int) -> None:
        os.ftruncate(self._fd(name), size)

    def rename(self, old: str, new: str) -> None:
        self._close(old)
        self._close(new)
        os.rename(self._path / old, self._path / new)

    def remove(self, name: str) -> None:
        self._close(name)
        os.unlink(self._path / name)

    def sync_names(self) -> None:
        fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def close(self) -> None:
        for name in list(self._open):
            self._close(name)

    def _fd(self, name: str) -> int:
        fd = self._open.get(name)
        if fd is None:
            fd = self._open[name] = os.open(self._path / name, os.O_RDWR | os.O_CLOEXEC)
        return fd

    def _close(self, name: str) -> None:
        fd = self._open.pop(name, None)
        if fd is not None:
            os.close(fd)
