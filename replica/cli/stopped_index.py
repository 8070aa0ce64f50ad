"""The index of a replica that is stopped, for the commands that read or change one."""

from __future__ import annotations

import fcntl
from pathlib import Path

from replica.cli.common import find_config, load
from replica.notary.codes import Code
from replica.notary.errors import ConfigError


def stopped_index(config: Path | None, name: str) -> Path:
    """The folder of a replica's index, which no process has open. Raises ConfigError."""
    folder = place_of_index(config, name)
    if not folder.is_dir():
        raise ConfigError(f"{name} has no index: there is no {folder}")
    return folder


def place_of_index(config: Path | None, name: str) -> Path:
    """The same, or where the index of a replica will be that has none, because it is new or lost its disk."""
    settings = load(find_config(config))
    settings.replica(name)
    folder = settings.replica_dir(name) / "index"
    try:
        with (folder / "LOCK").open("r+b") as lock:  # RocksDB's own lock; released when the file is closed
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        pass
    except OSError:
        raise ConfigError(f"{name} is running: stop it first, its index is in use", Code.NOT_POSSIBLE_NOW) from None
    return folder
