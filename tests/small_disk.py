"""A folder on a small file system of its own, for tests that fill a disk."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench.usage import folder_bytes

ROOM_MIB = 160  # for what a load adds while a test runs; a merge of all runs takes their size once more


def room_for(index: Path) -> int:
    """A size for a disk that an index like this one fits on twice, MiB."""
    return ROOM_MIB + 2 * folder_bytes(index) // 2**20


@contextmanager
def small_disk(folder: Path, size_mib: int) -> Iterator[Path]:
    """The folder as a file system of its own with little room; what it held is gone, and it is empty afterwards."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
    options = f"size={size_mib}m,mode=700"
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False)
    if made.returncode != 0:
        pytest.skip("NOT PLAYED: a small disk takes `mount -t tmpfs`: run it as root, with CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(path: Path) -> None:
    """Write until there is no room left."""
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(65_536))
        except OSError:
            return
