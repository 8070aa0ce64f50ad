"""Structured logs: one JSON object a line on standard output, with stable event names."""

from __future__ import annotations

import logging
from typing import TextIO, cast

import structlog

from replica.notary.library_lines import take_library_lines
from replica.notary.log_lines import LogLines


def set_up_logging(**bound: str) -> None:
    """Log JSON lines, each with the given fields; call once, before anything logs."""
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=cast(TextIO, LogLines())),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(**bound)
    take_library_lines()
