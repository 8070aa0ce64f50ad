"""Reading on: where a reader begins, where the log ends, and how much is judged at a time."""

from __future__ import annotations

from ha.clock import Clock
from replica.log.interface import LogMissing, LogReader, LogRecords, RequestLog
from replica.notary.errors import LogGone, LogRefused, LogTruncated, LogUnavailable
from replica.notary.position import BEGIN, Position
from replica.notary.records import record_digest

FIRST_RECORD_MAX_S = 5.0  # of a reader that was just opened: it may have to connect, on a busy machine
LOG_MISSING_MAX_S = 5.0  # servers that have just started know their logs sooner


async def known_log(log: RequestLog, clock: Clock, retry_s: float) -> str:
    """The log's identity. Raises LogRefused when it is unsafe, LogGone when there is none, and LogUnavailable.

    Servers that have just started may not know of the log yet, so they are asked for LOG_MISSING_MAX_S.
    """
    until_s = clock.boottime_s() + LOG_MISSING_MAX_S
    while True:
        try:
            return await log.check()
        except LogMissing as error:
            if clock.boottime_s() >= until_s:
                raise LogGone(error.detail) from error
        await clock.sleep_s(retry_s)


async def open_after(request_log: RequestLog, topic_id: str, position: Position) -> LogReader:
    """A reader that begins after `position`, once the log has proved that the position was read from it.

    Raises LogRefused when the topic is another one or has another record there, LogTruncated when it ends before, and
    LogUnavailable.
    """
    if position.topic_id != topic_id:
        raise LogRefused(f"the position was read from topic id {position.topic_id}, the log's is {topic_id}")
    if position.offset == BEGIN:
        return await request_log.open_reader(0)
    await end_after(request_log, position.offset)
    reader = await request_log.open_reader(position.offset)
    try:
        require_applied(await _read_one(reader, position.offset), position)
    except BaseException:
        await reader.close()
        raise
    return reader


async def record_at(request_log: RequestLog, offset: int) -> bytes:
    """The record at an offset before the log's end. Raises LogTruncated, LogRefused and LogUnavailable."""
    reader = await request_log.open_reader(offset)
    try:
        return await _read_one(reader, offset)
    finally:
        await reader.close()


def require_applied(value: bytes, position: Position) -> None:
    """Raise LogRefused unless this is the record that was applied last."""
    if record_digest(value) != position.digest:
        raise LogRefused(f"the log's record at offset {position.offset} is not the one that was applied")


async def _read_one(reader: LogReader, offset: int) -> bytes:
    records = await reader.read(1, FIRST_RECORD_MAX_S)
    if not records or records[0][0] != offset:
        raise LogUnavailable(f"no record at offset {offset} in time")
    return records[0][1]


async def end_after(request_log: RequestLog, offset: int) -> int:
    """The log's end. It lies after the record at `offset`, because that record was read from the log.

    Raises LogTruncated when most brokers report an earlier end. A single broker that is cut off from its peers may
    report less than there is. Raises LogUnavailable.
    """
    end = await request_log.end_offset()
    if end <= offset:
        end = await request_log.agreed_end_offset()
    if end <= offset:
        raise LogTruncated(f"the log ends at {end}, but the record at {offset} was read from it already")
    return end


def bounded_runs(records: LogRecords, states_max: int) -> list[LogRecords]:
    """Cut a read into runs whose bytes bound the states in them, so that no run blocks the event loop for long."""
    bytes_max = states_max * 36
    runs: list[LogRecords] = []
    start = size = 0
    for at, (_, value) in enumerate(records):
        if size and size + len(value) > bytes_max:
            runs.append(records[start:at])
            start, size = at, 0
        size += len(value)
    if start < len(records):
        runs.append(records[start:])
    return runs
