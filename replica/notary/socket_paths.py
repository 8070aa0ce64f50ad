"""The kernel takes short paths only for Unix sockets: said before anything is set up."""

from __future__ import annotations

import os
from pathlib import Path

from replica.notary.errors import ConfigError

PATH_MAX_BYTES = 107  # of the kernel


def check_socket_path(path: Path, most: int = PATH_MAX_BYTES) -> None:
    """Raise ConfigError where a Unix socket cannot have this path. `most`: where its user needs some of the bytes."""
    if (size := len(os.fsencode(path.absolute()))) > most:
        raise ConfigError(
            f"a Unix socket's path has at most {most} bytes, this one {size}: {path.absolute()}; use a shorter folder"
        )
