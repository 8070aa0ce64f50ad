"""The contract of a completion reader. A class that inherits it provides the fixtures `new_store` and `reader`."""

from __future__ import annotations

from replica.store.interface import ParticipantStore
from replica.store.one_connection import SCAN_DETAIL_BYTES
from replica.store.reader import WINDOW_DETAIL_BYTES, CompletionReader
from tests.contracts.store_contract import (
    REJECTED,
    NewStore,
    activated,
    command,
    completion,
    publish,
)

COUNT = 30
DETAIL_MAX_BYTES = 800_000  # a conflict of 9,999 states


async def publish_some(new_store: NewStore) -> None:
    """Thirty completions: three for each of the log offsets 100, 110, 120, …; those of even commands are conflicts."""
    store = await activated(new_store)
    for n in range(0, COUNT, 3):
        done = [
            completion(command(m), 100 + 10 * (n // 3), REJECTED, detail=b"<%d>" % m)
            if m % 2 == 0
            else completion(command(m), 100 + 10 * (n // 3))
            for m in range(n, n + 3)
        ]
        await publish(store, done, 100 + 10 * (n // 3), n)


async def publish_over_time(new_store: NewStore) -> ParticipantStore:
    """Ten completions, recorded at 1,000, 2,000, … microseconds; the store that published them."""
    store = await activated(new_store)
    for n in range(1, 11):
        await publish(store, [completion(command(n), n, recorded_us=1_000 * n)], n, n - 1)
    return store


class ReaderContract:
    """What one example says better than LedgerMachine. Every test gets a database of its own."""

    async def test_bytes_are_bounded_where_rows_are(self, new_store: NewStore, reader: CompletionReader) -> None:
        """Goal: no question fetches more than its bytes and one row, or searches more, and none sticks. Method: the
        largest conflicts, of which a few would do, between small ones; read all, then a history of all."""
        store, state = await activated(new_store), b"<a state>"
        largest = state + b"d" * DETAIL_MAX_BYTES
        for n in range(12):
            detail = state if n % 4 == 0 else largest
            await publish(store, [completion(command(n), 100 + n, REJECTED, detail=detail)], 100 + n, n)
        read, scanned_to, found = 0, 0, []
        while read < 12:
            rows = await reader.read(read, 12, WINDOW_DETAIL_BYTES)
            assert sum(len(row[1].detail) for row in rows[:-1]) < WINDOW_DETAIL_BYTES
            read = rows[-1][0]
        while scanned_to < 12:
            scan = await reader.find_attempts(state, b"", scanned_to, 12)
            assert scan.scanned_to > scanned_to
            assert sum(len(row[1].detail) for row in scan.rows[:-1]) < WINDOW_DETAIL_BYTES
            found, scanned_to = found + scan.rows, scan.scanned_to
        assert [offset for offset, _ in found] == list(range(1, 13))
        nothing = await reader.find_attempts(b"another", b"", 0, 12)
        assert nothing.rows == []
        assert nothing.scanned_to * DETAIL_MAX_BYTES <= SCAN_DETAIL_BYTES + 5 * DETAIL_MAX_BYTES

    async def test_a_reader_goes_on_after_a_reset(self, new_store: NewStore, reader: CompletionReader) -> None:
        """Goal: a connection is made when it is needed. Method: reset before, between and after two reads."""
        await reader.reset()
        await publish_some(new_store)
        first = await reader.read(0, 3)
        await reader.reset()
        assert await reader.read(0, 3) == first
        await reader.close()
        await reader.close()
