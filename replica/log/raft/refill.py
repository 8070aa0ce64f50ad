"""Puts records back into a new log on log nodes, at their original offsets.

Such a log signs the time of each append, so records get the time of the restore; no rule reads it. A batch is never
sent twice: where its answer is lost, the refill ends, and what is in the log is compared before it goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from itertools import islice

from replica.log.admin import StoredRecord
from replica.log.raft.admin import RaftLogAdmin
from replica.log.raft.client import CallFailed, LogClient, within
from replica.log.raft.log import RaftLog
from replica.log.raft.log_settings import RaftLogSettings
from replica.notary.errors import LogUnavailable, RestoreRefused

BATCH_RECORDS = 1_000
BATCH_BYTES = 1 << 20

OnRecord = Callable[[int], None]


def refill(
    settings: RaftLogSettings, records: Iterable[StoredRecord], first: int, end: int, on_record: OnRecord
) -> str:
    """Append records with offsets [first, end) after the records that are there, and return the log's id.

    The nodes run, and one of them has begun the log. Raises RestoreRefused when somebody else appends, or a record has
    what this log does not keep: a key, headers, or no value; and LogUnavailable.
    """
    return asyncio.run(_refill(settings, records, first, end, on_record))


async def _refill(
    settings: RaftLogSettings, records: Iterable[StoredRecord], first: int, end: int, on_record: OnRecord
) -> str:
    log_id = await _create(settings)
    log = RaftLog(settings)
    following = first
    try:
        async with _leader(log) as client:
            for part in _parts(records):
                values = _values(part, following)
                await _check_end(log, following)
                try:
                    await within(client.append(values), settings.append_max_s)
                except CallFailed as error:
                    raise LogUnavailable(f"{error}; repeat with --resume") from None
                except LogUnavailable as error:
                    raise LogUnavailable(f"{error.detail}; repeat with --resume") from None
                following += len(values)
                on_record(following)
        await _check_end(log, following)
    finally:
        await log.close()
    if following != end:
        raise RestoreRefused(f"the archive gave records up to {following - 1} of {end - 1}: repeat with --resume")
    return log_id


@asynccontextmanager
async def _leader(log: RaftLog) -> AsyncIterator[LogClient]:
    client = await log.connect(await log.any_leader())
    try:
        yield client
    finally:
        await client.close()


async def _check_end(log: RaftLog, following: int) -> None:
    if (found := await log.agreed_end_offset()) != following:
        raise RestoreRefused(
            f"the log ends at offset {found}, and not at {following}: somebody else appends to it. Begin a new log"
        )


def _values(part: list[StoredRecord], first: int) -> list[bytes]:
    if part[0].offset != first:
        raise RestoreRefused(f"the record of offset {part[0].offset} would come to lie at {first}")
    values = [record.value for record in part if record.value is not None]
    if len(values) < len(part) or any(record.key is not None or record.headers for record in part):
        raise RestoreRefused("the archive has records with keys, headers or no value, which log nodes do not keep")
    return values


def _parts(records: Iterable[StoredRecord]) -> Iterator[list[StoredRecord]]:
    """The records in lists, none empty, each of about BATCH_BYTES at most."""
    left = iter(records)
    while together := list(islice(left, BATCH_RECORDS)):
        start = size = 0
        for at, record in enumerate(together):
            size += len(record.value or b"")
            if size > BATCH_BYTES and at > start:
                yield together[start:at]
                start, size = at, len(record.value or b"")
        yield together[start:]


async def _create(settings: RaftLogSettings) -> str:
    admin = RaftLogAdmin(settings)
    try:
        return await admin.create()
    finally:
        await admin.close()
