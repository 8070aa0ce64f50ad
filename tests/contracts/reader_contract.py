"""The contract of a completion reader. A class that inherits it provides the fixtures `new_store` and `reader`."""

from __future__ import annotations

import pytest

from replica.notary.errors import StoreUnavailable
from replica.store.interface import ParticipantStore, Pruned
from replica.store.one_connection import SCAN_DETAIL_BYTES
from replica.store.reader import WINDOW_DETAIL_BYTES, CompletionReader
from tests.contracts.store_contract import (
    REJECTED,
    NewStore,
    activated,
    at,
    command,
    completion,
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
        await store.publish(done, at(100 + 10 * (n // 3)))


async def publish_over_time(new_store: NewStore) -> ParticipantStore:
    """Ten completions, recorded at 1,000, 2,000, … microseconds; the store that published them."""
    store = await activated(new_store)
    for n in range(1, 11):
        await store.publish([completion(command(n), n, recorded_us=1_000 * n)], at(n))
    return store


class ReaderContract:
    """Every test gets a database of its own."""

    async def test_completions_are_read_as_they_were_published(
        self, new_store: NewStore, reader: CompletionReader
    ) -> None:
        """Goal: every field, in order, dense, bounded by `until`. Method: read on to the end, then from the middle."""
        await publish_some(new_store)
        read = list(await reader.read(0, 25))
        while read[-1][0] < COUNT:
            read += await reader.read(read[-1][0], COUNT)
        assert [offset for offset, _ in read] == list(range(1, COUNT + 1))
        assert read[4][1] == completion(command(4), 110, REJECTED, detail=b"<4>")
        assert read[5][1] == completion(command(5), 110)
        assert [offset for offset, _ in await reader.read(27, 29)] == [28, 29]
        assert list(await reader.read(COUNT, COUNT)) == []

    async def test_rows_that_are_not_there_are_an_error(self, new_store: NewStore, reader: CompletionReader) -> None:
        """Goal: a database that is behind is never taken for the end. Method: ask for more than is published."""
        await publish_some(new_store)
        with pytest.raises(StoreUnavailable):
            await reader.read(COUNT, COUNT + 1)

    async def test_a_log_offset_leads_to_its_first_completion(
        self, new_store: NewStore, reader: CompletionReader
    ) -> None:
        """Goal: found without an index. Method: every record's offset, those between, before and behind."""
        await publish_some(new_store)
        for record in range(10):
            assert await reader.first_at(100 + 10 * record, COUNT) == 1 + 3 * record
            assert await reader.first_at(101 + 10 * record, COUNT) == 4 + 3 * record
        assert await reader.first_at(0, COUNT) == 1
        assert await reader.first_at(10_000, COUNT) == COUNT + 1
        assert await reader.first_at(0, 0) == 1

    async def test_attempts_are_those_of_the_winner_and_those_it_beat(
        self, new_store: NewStore, reader: CompletionReader
    ) -> None:
        """Goal: a state's history in bounded steps. Method: read on until all is scanned."""
        await publish_some(new_store)
        found, scanned_to = [], 2
        while scanned_to < COUNT:
            scan = await reader.find_attempts(b"<14>", command(7).tx_id, scanned_to, COUNT)
            assert scan.scanned_to > scanned_to
            found, scanned_to = found + scan.rows, scan.scanned_to
        assert [(offset, done.tx_id) for offset, done in found] == [(8, command(7).tx_id), (15, command(14).tx_id)]

    async def test_bytes_are_bounded_where_rows_are(self, new_store: NewStore, reader: CompletionReader) -> None:
        """Goal: no question fetches more than its bytes and one row, or searches more, and none sticks. Method: the
        largest conflicts, of which a few would do, between small ones; read all, then a history of all."""
        store, state = await activated(new_store), b"<a state>"
        largest = state + b"d" * DETAIL_MAX_BYTES
        for n in range(12):
            detail = state if n % 4 == 0 else largest
            await store.publish([completion(command(n), 100 + n, REJECTED, detail=detail)], at(100 + n))
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


class PruningContract:
    """The same for a store that prunes."""

    async def test_the_bound_moves_to_what_is_safe_and_never_back(
        self, new_store: NewStore, reader: CompletionReader
    ) -> None:
        """Goal: young completions stay. Method: bounds below, at and above what is old enough, and lower ones."""
        store = await publish_over_time(new_store)
        assert await store.prune(None, 0) == Pruned(0, 0)
        assert await store.prune(6, 5_001) == Pruned(0, 5)
        assert await store.prune(3, 5_001) == Pruned(3, 5)
        assert await store.prune(2, 5_001) == Pruned(3, 5)
        assert await store.prune(None, 5_001) == Pruned(5, 5)
        assert await store.prune(None, 2_000) == Pruned(5, 5)
        assert await store.prune(None, 10**9) == Pruned(10, 10)
        assert (await (await activated(new_store)).published()).pruned_to == 10

    async def test_offsets_are_found_above_the_bound(self, new_store: NewStore, reader: CompletionReader) -> None:
        """Goal: what is pruned is not needed to find the rest. Method: prune, then search."""
        store = await publish_over_time(new_store)
        await store.prune(4, 10**9)
        assert await reader.first_at(2, 10) == 5
        assert await reader.first_at(7, 10) == 7
        assert [offset for offset, _ in await reader.read(4, 10)][:2] == [5, 6]
