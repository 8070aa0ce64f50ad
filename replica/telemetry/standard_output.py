"""Where log lines go: standard output, each by one write, and none ends a process that could not write it."""

from __future__ import annotations

import io
import os
from contextlib import suppress

STANDARD_OUTPUT = 1


class LogLines(io.TextIOBase):
    """Standard output without a buffer. A line that cannot be written, to a full disk perhaps, is dropped.

    Otherwise a disk that only has the logs on it could keep a replica from stepping down, or its peer from taking over:
    both tell what they do before they do it.
    """

    def __init__(self, fd: int = STANDARD_OUTPUT) -> None:
        self._fd = fd

    def write(self, text: str) -> int:
        """Write all of it, or drop what cannot be written."""
        with suppress(OSError):
            os.write(self._fd, text.encode(errors="replace"))
        return len(text)
