"""A reader for tools: where another server leads the log from some record on, it goes on there.

A replica's reader ends there instead, because a replica first finds again the record that it applied last.
"""

from __future__ import annotations

from replica.log.interface import LogReader, LogRecords, RequestLog
from replica.notary.errors import LogLeaderChanged


class ReadingOn:
    """See LogReader."""

    def __init__(self, log: RequestLog, reader: LogReader, start_offset: int) -> None:
        self._log = log
        self._reader = reader
        self._next = start_offset

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        """See LogReader."""
        try:
            records = await self._reader.read(max_records, wait_s)
        except LogLeaderChanged:
            await self._reader.close()
            self._reader = await self._log.open_reader(self._next)
            records = await self._reader.read(max_records, wait_s)
        if records:
            self._next = records[-1][0] + 1
        return records

    async def close(self) -> None:
        """See LogReader."""
        await self._reader.close()


async def open_reading_on(log: RequestLog, start_offset: int) -> ReadingOn:
    """A reader from this offset on, as `open_reader`."""
    return ReadingOn(log, await log.open_reader(start_offset), start_offset)
