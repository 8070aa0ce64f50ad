"""Checks of files that the configuration names: we can read them, only the owner can read those with secrets, and
only the owner can write those that say whom to trust."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import IO

from replica.notary.codes import Code
from replica.notary.errors import ConfigError


def check_readable(path: Path) -> None:
    """Raise ConfigError when a file is missing, or this account may not read it."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def check_secret(path: Path) -> None:
    """As `check_readable`, and raise ConfigError (KEY_UNSAFE) when others can read the file.

    A group may read a file of root's, as with Postgres: so administrators, or Kubernetes, hand one out.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    mode, handed_out = found.st_mode, found.st_uid == 0 != os.geteuid()
    if mode & (stat.S_IWGRP | stat.S_IXGRP | stat.S_IRWXO if handed_out else stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} has mode {stat.S_IMODE(mode):04o}, it must be 0600", Code.KEY_UNSAFE)
    check_readable(path)


def check_trusted(path: Path) -> None:
    """Raise ConfigError (TRUST_UNSAFE) when others can write a file that says whose signatures count; and OSError.

    Its folder is not judged: Kubernetes mounts such files, unwritable, in folders that everybody may write.
    """
    mode = path.stat().st_mode
    if mode & (stat.S_IWGRP | stat.S_IWOTH):
        problem = f"{path} has mode {stat.S_IMODE(mode):04o}: nobody but its owner may write it"
        raise ConfigError(problem, Code.TRUST_UNSAFE)


def read_secret(path: Path) -> str:
    """The content of a password file, without the line end. Raises ConfigError as `check_secret` does."""
    check_secret(path)
    try:
        return path.read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, ValueError):  # the error must not contain the content
        raise ConfigError(f"{path} cannot be read as UTF-8 text") from None


def open_not_for_others(path: Path, mode: str) -> IO[bytes]:
    """Open a file that names parties and transactions: a new one has mode 0640, or less by the umask."""
    return open(path, mode, opener=lambda name, flags: os.open(name, flags, 0o640))
