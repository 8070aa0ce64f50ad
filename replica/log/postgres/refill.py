"""Puts records back into a log at their original offsets and times, as the log's owner.

A writer cannot do this: its times are the server's. No other client may append meanwhile: each transaction checks that
the head is where the one before left it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import groupby, islice

import psycopg

from replica.log.admin import StoredRecord
from replica.log.postgres.admin import PostgresLogAdmin
from replica.log.postgres.install import read_sql
from replica.log.postgres.session import connection_parameters, meaning_of
from replica.log.postgres.settings import PostgresLogSettings
from replica.notary.errors import RestoreRefused

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRANSACTION_RECORDS = 5_000
TRANSACTION_BYTES = 16 << 20

OnRecord = Callable[[int], None]
Connection = psycopg.Connection[tuple[object, ...]]


def refill(
    settings: PostgresLogSettings, records: Iterable[StoredRecord], first: int, end: int, on_record: OnRecord
) -> str:
    """Write records with offsets [first, end) after the records that are there, and return the log's id.

    Creates the log if there is none. Raises RestoreRefused when somebody else appends, or a record has a key or
    headers, which this log does not keep; LogRefused without the owner's rights, and LogUnavailable.
    """
    log_id = asyncio.run(_create(settings))
    following = first
    try:
        with psycopg.connect(**connection_parameters(settings), autocommit=True) as connection:  # type: ignore[arg-type]
            (room,) = connection.execute(b"SELECT partition_records FROM notary_log.log_head").fetchone() or (1,)
            for part in _parts(records, min(TRANSACTION_RECORDS, int(str(room)))):
                _append(connection, part, following)
                following += len(part)
                on_record(following)
    except psycopg.Error as error:
        raise meaning_of(error) from error
    if following != end:
        raise RestoreRefused(f"the archive gave records up to {following - 1} of {end - 1}: repeat with --resume")
    return log_id


def _append(connection: Connection, part: list[StoredRecord], first: int) -> None:
    """One transaction: the head, and a batch for each run of records with one time."""
    if part[0].offset != first:
        raise RestoreRefused(f"the record of offset {part[0].offset} would come to lie at {first}")
    if any(record.key is not None or record.headers for record in part):
        raise RestoreRefused("the archive has records with keys or headers, which a log on Postgres does not keep")
    with connection.transaction(), connection.cursor() as cursor:
        cursor.execute(b"SELECT notary_log.make_partitions()")
        cursor.execute(read_sql("raise_head"), {"first": first, "end": first + len(part)})
        if cursor.rowcount != 1:
            raise RestoreRefused(f"the log does not end at offset {first}: somebody else appends to it. Delete it")
        with cursor.copy(b"COPY notary_log.log_batch (first_offset, appended_at, records) FROM STDIN") as copy:
            for time_ms, run in groupby(part, lambda record: record.timestamp_ms):
                batch = list(run)
                at = EPOCH + timedelta(milliseconds=time_ms)
                copy.write_row((batch[0].offset, at, [record.value for record in batch]))


def _parts(records: Iterable[StoredRecord], count_max: int) -> Iterator[list[StoredRecord]]:
    """The records in lists of at most `count_max`, none empty, each of about TRANSACTION_BYTES at most."""
    left = iter(records)
    while part := list(islice(left, count_max)):
        start = size = 0
        for at, record in enumerate(part):
            size += len(record.value or b"")
            if size > TRANSACTION_BYTES and at > start:
                yield part[start:at]
                start, size = at, len(record.value or b"")
        yield part[start:]


async def _create(settings: PostgresLogSettings) -> str:
    admin = PostgresLogAdmin(settings)
    try:
        return await admin.create()
    finally:
        await admin.close()
