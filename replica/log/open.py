"""Opens the request log that a configuration names: the only place where an adapter is built by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from replica.log.admin import LogAdmin, StoredRecord
from replica.log.interface import RequestLog
from replica.log.settings import LogSettings


def open_log(settings: LogSettings) -> RequestLog:
    """The request log. It connects when first asked."""
    from replica.log.kafka.log import KafkaLog

    return KafkaLog(settings)


def open_log_admin(settings: LogSettings) -> LogAdmin:
    """What tools ask of that log. It connects when first asked."""
    from replica.log.kafka.topic import TopicAdmin

    return TopicAdmin(settings)


def refill_log(
    settings: LogSettings, records: Iterable[StoredRecord], first: int, end: int, on_record: Callable[[int], None]
) -> str:
    """Put records [first, end) back at the offsets that they had, after those that are there; returns its identity.

    Nobody else may append meanwhile. `on_record` is called with the number of records in the log. Raises
    RestoreRefused when a record came to lie at another offset, and LogUnavailable.
    """
    from replica.log.kafka.refill import refill

    return refill(settings, records, first, end, on_record)
