"""Structured logs of every process: one JSON object per line on standard output, with stable event names."""

from __future__ import annotations

import logging
from typing import TextIO, cast

import structlog
from structlog.typing import EventDict

from replica.telemetry.library_lines import take_library_lines
from replica.telemetry.standard_output import LogLines, never_wait_for_readers


class _Output:
    """The output of this process, once it is set up."""

    lines: LogLines | None = None


def set_up_logging(level: str = "info", /, **bound: str) -> None:
    """Log JSON lines at this level and above, each with the given fields. Call it once, before anything is logged."""
    _Output.lines = LogLines()
    never_wait_for_readers()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _with_dropped,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, _Output.lines)),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**bound)
    take_library_lines()


def lines_dropped() -> int:
    """Lines of this process that nobody took: the reader stood still, or the disk was full."""
    return 0 if _Output.lines is None else _Output.lines.dropped


def _with_dropped(_: object, __: str, event: EventDict) -> EventDict:
    """Say in each later line how many are missing, so that who reads only the log knows."""
    if dropped := lines_dropped():
        event["lines_dropped"] = dropped
    return event
