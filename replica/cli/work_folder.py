"""Folders for the work of one command. They go with it; after a kill, the next command removes them."""

from __future__ import annotations

import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK_NAME = "owner.lock"
_STARTING = ".starting-"  # not locked yet, and must not be taken for one that was left


@contextmanager
def work_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """A new folder in `parent` with that prefix. Removed after the context; removes also those of killed processes.

    Its owner holds a lock on a file in it, which the kernel takes back when the process ends. Raises OSError.
    """
    parent.mkdir(parents=True, exist_ok=True)
    _remove_left(parent, prefix)
    starting = Path(tempfile.mkdtemp(prefix=_STARTING, dir=parent))
    with (starting / _LOCK_NAME).open("wb") as owner:
        fcntl.flock(owner, fcntl.LOCK_EX)
        folder = starting.rename(parent / f"{prefix}{starting.name.removeprefix(_STARTING)}").absolute()
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _remove_left(parent: Path, prefix: str) -> None:
    """Remove the folders with that prefix that no process owns any more."""
    for left in parent.glob(f"{prefix}*"):
        if not _is_owned(left):
            shutil.rmtree(left, ignore_errors=True)


def _is_owned(folder: Path) -> bool:
    try:
        with (folder / _LOCK_NAME).open("rb+") as owner:
            fcntl.flock(owner, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:  # an earlier release's, or being removed right now
        return False
    return False
