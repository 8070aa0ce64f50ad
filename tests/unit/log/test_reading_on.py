"""Tools read on where another server leads the log."""

from __future__ import annotations

import pytest

from replica.log.interface import LogRecords
from replica.log.reading_on import open_reading_on
from replica.notary.errors import LogLeaderChanged, LogUnavailable

RECORDS = [(offset, bytes([offset])) for offset in range(6)]


class Leader:
    """A reader that has the records before `end`, and then ends as told."""

    def __init__(self, start: int, end: int, failure: Exception) -> None:
        self._left, self._failure, self.closed = RECORDS[start:end], failure, False

    async def read(self, max_records: int, wait_s: float) -> LogRecords:
        if not self._left:
            raise self._failure
        found, self._left = self._left[:max_records], self._left[max_records:]
        return found

    async def close(self) -> None:
        self.closed = True


class Log:
    """A log whose leader changes at offset 3."""

    def __init__(self, failure: Exception) -> None:
        self._failure = failure
        self.opened: list[Leader] = []

    async def open_reader(self, start_offset: int) -> Leader:
        self.opened.append(Leader(start_offset, 6 if self.opened else 3, self._failure))
        return self.opened[-1]


async def test_it_goes_on_at_the_next_record() -> None:
    """Goal: a change of the leader is no error of a tool, and no record is lost or read twice. Method: read over it."""
    log = Log(LogLeaderChanged("another leads"))
    reader = await open_reading_on(log, 1)  # type: ignore[arg-type]
    found = [record for _ in range(3) for record in await reader.read(2, 1.0)]
    assert found == RECORDS[1:]
    await reader.close()
    assert [one.closed for one in log.opened] == [True, True]


async def test_any_other_failure_is_the_caller_s() -> None:
    """Goal: a log that is away is told. Method: the same with another error."""
    log = Log(LogUnavailable("away"))
    reader = await open_reading_on(log, 1)  # type: ignore[arg-type]
    await reader.read(6, 1.0)
    with pytest.raises(LogUnavailable):
        await reader.read(6, 1.0)
