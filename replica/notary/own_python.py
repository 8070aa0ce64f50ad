"""How Python is started for a part of ours: it imports nothing from the current folder.

`python -m` puts the current folder before everything else, and `python -c` does. A user's `queue.py` would stop the
notary, and a stranger's `structlog.py` would run in the process that holds the key.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SAFE_PATH = "PYTHONSAFEPATH"


def module_argv(module: str, *words: str, python: str | Path = sys.executable) -> list[str]:
    """The command that runs a module of ours."""
    return [str(python), "-P", "-m", module, *words]


@contextmanager
def safe_children() -> Iterator[None]:
    """Processes that a library starts meanwhile import nothing from the current folder either."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
