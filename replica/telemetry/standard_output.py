"""The output of log lines: one write to standard output for each. A failed write never ends the process."""

from __future__ import annotations

import io
import os
from contextlib import suppress

STANDARD_OUTPUT = 1


class LogLines(io.TextIOBase):
    """Standard output without a buffer. A line that cannot be written, for instance to a full disk, is dropped.

    Both stepping down and taking over begin with a log line. Without this class, a full disk of logs alone could keep a
    replica from stepping down, or its peer from taking over.
    """

    def __init__(self, fd: int = STANDARD_OUTPUT) -> None:
        self._fd = fd

    def write(self, text: str) -> int:
        """Write all of it, or drop what cannot be written."""
        with suppress(OSError):
            os.write(self._fd, text.encode(errors="replace"))
        return len(text)
