"""Files with secrets: nobody but their owner may read them."""

from __future__ import annotations

import stat
from pathlib import Path

from replica.notary.errors import Code, ConfigError


def check_secret(path: Path) -> None:
    """Raise ConfigError when a file with a secret is missing, or (KEY_UNSAFE) when others can read it."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} has mode {stat.S_IMODE(mode):04o}, it must be 0600", Code.KEY_UNSAFE)
