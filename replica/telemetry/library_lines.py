"""The log records of libraries, in our format: one JSON object per line, bounded in length and in number.

Otherwise Python prints them to standard error in their own format: several lines each, and as many as a remote client
provokes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from traceback import format_exception

import structlog

LINES_PER_S = 2
DETAIL_MAX = 500
EXCEPTION_MAX = 4_000  # characters, taken from its end
_log = structlog.get_logger(__name__)


class LibraryLines(logging.Handler):
    """Logs a limited number of records a second, one line each. The next line says how many were left out."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._second = -1
        self._written = 0
        self._withheld = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Log one record, or count it."""
        second = int(self._now_s())
        if second != self._second:
            self._second, self._written = second, 0
        if self._written >= LINES_PER_S:
            self._withheld += 1
            return
        self._written += 1
        more = (
            {} if not record.exc_info else {"exception": "".join(format_exception(record.exc_info[1]))[-EXCEPTION_MAX:]}
        )
        _log.log(
            max(record.levelno, logging.INFO),
            "library",
            library=record.name,
            detail=_message(record)[:DETAIL_MAX],
            withheld=self._withheld,
            **more,
        )
        self._withheld = 0


def take_library_lines() -> None:
    """Send the log records of all libraries through our log. May be repeated."""
    logging.basicConfig(handlers=[LibraryLines()], level=logging.WARNING, force=True)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # arguments that do not fit the text
        return str(record.msg)
