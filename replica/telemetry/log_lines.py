"""Structured logs of every process: one JSON object per line on standard output, with stable event names."""

from __future__ import annotations

import logging
from typing import TextIO, cast

import structlog

from replica.telemetry.library_lines import take_library_lines
from replica.telemetry.standard_output import LogLines


def set_up_logging(level: str = "info", /, **bound: str) -> None:
    """Log JSON lines at this level and above, each with the given fields. Call it once, before anything is logged."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, LogLines())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**bound)
    take_library_lines()
