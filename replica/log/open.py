"""Opens the request log that a configuration names: the only place where an adapter is built by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from replica.log.admin import LogAdmin, StoredRecord
from replica.log.in_memory.settings import MemoryLogSettings
from replica.log.interface import RequestLog
from replica.log.kafka.settings import KafkaSettings
from replica.log.postgres.settings import PostgresLogSettings
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.settings import LogSettings
from replica.notary.errors import RestoreRefused


def open_log(settings: LogSettings) -> RequestLog:
    """The request log. It connects when first asked."""
    match settings:
        case KafkaSettings():
            from replica.log.kafka.log import KafkaLog

            return KafkaLog(settings)
        case MemoryLogSettings():
            from replica.log.in_memory.log import RemoteMemoryLog

            return RemoteMemoryLog(settings)
        case PostgresLogSettings():
            from replica.log.postgres.log import PostgresLog

            return PostgresLog(settings)
        case RaftLogSettings():
            from replica.log.raft.log import RaftLog

            return RaftLog(settings)


def open_log_admin(settings: LogSettings) -> LogAdmin:
    """The operations of tools on that log. It connects when first asked."""
    match settings:
        case KafkaSettings():
            from replica.log.kafka.topic import TopicAdmin

            return TopicAdmin(settings)
        case MemoryLogSettings():
            from replica.log.in_memory.log import MemoryLogAdmin

            return MemoryLogAdmin(settings)
        case PostgresLogSettings():
            from replica.log.postgres.admin import PostgresLogAdmin

            return PostgresLogAdmin(settings)
        case RaftLogSettings():
            from replica.log.raft.admin import RaftLogAdmin

            return RaftLogAdmin(settings)


def refill_log(
    settings: LogSettings,
    records: Iterable[StoredRecord],
    first: int,
    end: int,
    on_record: Callable[[int], None],
    *,
    goes_on: bool = False,
) -> str:
    """Put records [first, end) back at their original offsets, after the records that are there; return the identity.

    No other client may append meanwhile. Where the settings say that the log keeps no times, records get those of the
    restore. `on_record` is called with the number of records in the log. `goes_on`: more follow, up to `finish_refill`.
    Raises RestoreRefused when a record gets another offset, or this kind of log cannot be restored; and LogUnavailable.
    """
    match settings:
        case KafkaSettings():
            from replica.log.kafka.refill import refill as refill_topic

            return refill_topic(settings, records, first, end, on_record, goes_on=goes_on)
        case PostgresLogSettings():
            from replica.log.postgres.refill import refill

            return refill(settings, records, first, end, on_record)
        case RaftLogSettings():
            from replica.log.raft.refill import refill as refill_nodes

            return refill_nodes(settings, records, first, end, on_record)
        case _:
            raise RestoreRefused(f"log.kind is {settings.kind}: such a log is not restored")


def finish_refill(settings: LogSettings) -> None:
    """Leave a log that was refilled as one that replicas write. May be repeated. Raises LogUnavailable."""
    if isinstance(settings, KafkaSettings):
        from replica.log.kafka.refill import finish

        finish(settings)
