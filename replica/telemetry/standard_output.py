"""The output of log lines: one write to standard output for each. It never waits, and never ends the process.

Who reads our output may stand still: a container runtime, a journal, a terminal. A plain write to a full pipe waits for
it, and a replica that waits answers nobody. Both stepping down and taking over begin with a log line.
"""

from __future__ import annotations

import io
import os
import socket
import stat
import sys
from collections.abc import Callable
from functools import partial
from typing import TextIO, cast

STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
LINE_MAX = 2**20  # characters; a longer line is written in pieces


class LogLines(io.TextIOBase):
    """An output of whole lines. A line that cannot be written now is dropped and counted: a full pipe or disk."""

    def __init__(self, fd: int = STANDARD_OUTPUT) -> None:
        self._fd = fd
        self._write = _writer(fd)
        self._begun = ""  # text whose line has no end yet: others may write to the same output
        self._rest = b""  # of a line that went out in part: it goes before the next one
        self.dropped = 0

    def write(self, text: str) -> int:
        """Write the lines that it ends, or drop them if they cannot be written."""
        begun = self._begun + text
        end = len(begun) if len(begun) > LINE_MAX else begun.rfind("\n") + 1
        self._begun = begun[end:]
        if end:
            self._put(begun[:end].encode(errors="replace"))
        return len(text)

    def _put(self, line: bytes) -> None:
        try:
            if self._rest:
                self._rest = self._rest[self._write(self._rest) :]
            if self._rest:
                raise BlockingIOError
            self._rest = line[self._write(line) :]
        except OSError:
            self.dropped += 1

    def fileno(self) -> int:
        """The descriptor that it was made for."""
        return self._fd

    def isatty(self) -> bool:
        """Whether people read it."""
        return os.isatty(self._fd)


def never_wait_for_readers() -> None:
    """Give standard error the same output: Python's warnings and tracebacks go there. May be repeated."""
    sys.stderr = cast(TextIO, LogLines(STANDARD_ERROR))


def _writer(fd: int) -> Callable[[bytes], int]:
    """Writes to it without waiting; returns how many bytes it took, and raises OSError when it takes none.

    What others share must not change: a flag on a descriptor that was inherited is theirs as well. So a socket is told
    at each write, and a pipe or a terminal is opened anew.
    """
    try:
        kind = os.fstat(fd).st_mode
        if stat.S_ISSOCK(kind):
            output = socket.socket(fileno=os.dup(fd))
            return lambda data: output.send(data, socket.MSG_DONTWAIT)
        if stat.S_ISFIFO(kind) or stat.S_ISCHR(kind):
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return partial(os.write, os.open(f"/proc/self/fd/{fd}", flags))
    except OSError:  # another user's: what runs us made it for us alone
        os.set_blocking(fd, False)
    return partial(os.write, fd)
