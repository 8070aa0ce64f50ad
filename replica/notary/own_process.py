"""What holds for each process of ours, wherever and however it is started.

It imports nothing from the current folder. `python -m` puts that before everything else, and so does `python -c`: a
user's `queue.py` would stop the notary, and a stranger's `structlog.py` would run in the process that holds the key.
"""

from __future__ import annotations

import locale
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SAFE_PATH, UTF8_MODE = "PYTHONSAFEPATH", "PYTHONUTF8"
OPEN_FILES_MOST = 1_048_576  # asked for where the hard limit is none at all


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


def keep_standard_streams() -> None:
    """Put /dev/null where standard input, output or error is closed: else the next file that is opened gets their
    numbers, and log lines would go into it."""
    descriptor = os.open(os.devnull, os.O_RDWR)
    while descriptor <= 2:  # the lowest free number is given
        descriptor = os.dup(descriptor)
    os.close(descriptor)
    sys.stdin = sys.stdin or open(0)  # noqa: SIM115 (as long as the process)
    sys.stdout = sys.stdout or open(1, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w")  # noqa: SIM115


def speak_utf8() -> None:
    """Start this very command anew in UTF-8 where the locale has another encoding: files are in UTF-8 everywhere."""
    if sys.flags.utf8_mode or locale.getencoding().lower() in ("utf-8", "utf8"):
        return
    os.environ[UTF8_MODE] = "1"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 (this command, once more)


def raise_open_files() -> int:
    """Raise the soft limit on open files as far as the hard one allows. Returns what counts from then on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_MOST if hard == resource.RLIM_INFINITY else hard
    if soft in (resource.RLIM_INFINITY, wanted):
        return OPEN_FILES_MOST if soft == resource.RLIM_INFINITY else soft
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # the kernel's own most may be below
        return soft
    return wanted
