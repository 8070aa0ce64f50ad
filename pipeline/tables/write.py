"""The tables' job: reads the log in order, judges it, and appends to every table what each run of records adds.

The job's own index lags the tables, never the other way round: a run is judged, then appended, then written to the
index. A job that was killed in between judges the run again. Each table passes over the rows that it has, so it does
not matter where the runs end. An index without its tables, or of a table that was made anew, starts from the beginning.
"""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from time import monotonic

import pyarrow as pa

from pipeline.tables.delta import Table
from pipeline.tables.rows import COMPLETIONS, REQUESTS, SCHEMAS, LostRecord, rows_of
from replica.following.apply import judge_reading, lost_in, notes_in
from replica.index.commands import offset_of
from replica.index.interface import Index
from replica.index.parties import write_notes
from replica.index.rocks import RocksIndex
from replica.log.interface import LogReader, LogRecords, RequestLog
from replica.log.reading_on import open_reading_on
from replica.notary.errors import InvariantBroken, LogUnavailable, PlaceUnavailable
from replica.notary.places import Place, inside
from replica.notary.position import BEGIN, Position, begin
from replica.notary.reading import Reading, VoidReason, read_records
from replica.notary.rules import STATE_KEY, offset_in
from replica.notary.salvage import NO_SALVAGES, OF_PARTIES, OF_STATES, Salvages, of_kinds, salvage_named

RUN_RECORDS = 20_000  # in one append, which also bounds the memory of the job
READ_WAIT_S = 10.0
OnStep = Callable[[str], None]  # after each step, by its name; a job may be killed after any of them


class TablesWriter:
    """Appends to the tables in one folder; see `open_writer`."""

    def __init__(
        self, tables: dict[str, Table], index: Index, position: Position, on_step: OnStep, salvages: Salvages
    ) -> None:
        self._tables = tables
        self._index = index
        self._salvages = salvages
        self.position = position
        self._ledger_end = _ledger_end(tables[COMPLETIONS], position.offset)
        self._on_step = on_step

    @property
    def reached(self) -> int:
        """The log offset up to which all tables have their rows, -1 for none."""
        return self._tables[REQUESTS].offset

    @property
    def schemas(self) -> dict[str, str]:
        """The columns of each table by its name, in Delta's JSON: the next append may add some."""
        return {name: table.schema for name, table in self._tables.items()}

    def append(self, records: LogRecords) -> None:
        """Judge the next records, append their rows to every table, and move the index.

        Raises SalvageMissing for a lost record whose salvage is not held, FormatUnknown, IndexMismatch, and what
        `Table.append` and the index raise.
        """
        for part in self._parts(records):
            self._append(part)

    def _parts(self, records: LogRecords) -> Iterator[LogRecords]:
        """The records, parted after each lost range: ledger offsets go on from another number there."""
        start = 0
        for last in sorted(salvage.last for salvage in self._salvages.held.values()):
            end = last + 1 - records[0][0]
            if start < end < len(records):
                yield records[start:end]
                start = end
        yield records[start:]

    def _append(self, records: LogRecords) -> None:
        rows, added, accepted, reading = self._judged(records)
        ledger_end = self._ledger_end + len(rows[COMPLETIONS])
        digest = salvage_named(*records[-1])
        if digest is not None and (salvage := self._salvages.held[digest]).last == records[-1][0]:
            ledger_end = max(ledger_end, salvage.header.ledger_end)  # what was lost had completions, too
        for name, table in self._tables.items():
            goes_on = name == COMPLETIONS and ledger_end > self._ledger_end
            if len(rows[name]) or goes_on or name == REQUESTS:  # the last one: it notes how far all of them are
                table.append(rows[name], reading.position.offset, ledger_end if name == COMPLETIONS else None)
                self._on_step(name)
        self._index.write(added, reading.position, accepted)
        self.position, self._ledger_end = reading.position, ledger_end
        self._on_step("index")

    def _judged(
        self, records: LogRecords
    ) -> tuple[dict[str, pa.Table], dict[bytes, bytes], Mapping[bytes, bytes], Reading]:
        reading = read_records(self.position, records)
        lost = of_kinds(lost_in(reading, records, self._salvages), OF_PARTIES)
        write_notes(self._index.parties, notes_in(reading), self.position, reading.position, lost)
        applied, added = judge_reading(self._index, reading, self.position, records, self._salvages)
        decided = list(applied.decided())
        in_the_way = {STATE_KEY + one.state for _, verdict in decided if verdict for one in verdict.conflicts}
        keys = sorted(in_the_way - added.keys())
        consumed = added | dict(zip(keys, self._index.lookup(keys), strict=True))

        def consumed_at(state: bytes) -> int:
            if (value := consumed[STATE_KEY + state]) is None:
                raise InvariantBroken("a request was refused for a state that nobody had consumed")
            return offset_in(value)

        rows = rows_of(decided, reading.barriers, self._lost(reading, records), self._ledger_end, consumed_at)
        return rows, added, applied.accepted, reading

    def _lost(self, reading: Reading, records: LogRecords) -> Iterator[LostRecord]:
        """The run's lost records; `judge_reading` has found their salvages."""
        voids = [void.offset for void in reading.voids if void.reason is VoidReason.UNDECODABLE]
        for offset in voids:
            digest = salvage_named(offset, records[offset - records[0][0]][1])
            if digest is not None:
                salvage = self._salvages.of(digest, offset, offset)
                at = bisect_left(reading.counted, offset, key=attrgetter("offset"))
                stamp_us = reading.counted[at - 1].judged_us if at else self.position.stamp_us
                yield LostRecord(offset, salvage, of_kinds(salvage.entries_at(offset), OF_STATES), stamp_us)


def _ledger_end(completions: Table, offset: int) -> int:
    """The ledger offset of the last completion up to a log offset, which may be before the end of the table."""
    after = completions.least_after("ledger_offset", offset)
    return completions.count if after is None else after - 1


@contextmanager
def open_writer(
    place: Place,
    index_folder: Path,
    topic_id: str,
    on_step: OnStep = lambda name: None,
    salvages: Salvages = NO_SALVAGES,
) -> Iterator[TablesWriter]:
    """A writer of the tables of one log, at the position of its index, which may be before that of the tables.

    `index_folder`: belongs to this job alone. `salvages`: those that lost records name. Raises IndexUnreadable when
    another process has the index open or it is damaged: remove it then, it is made anew from the log. Raises as `Table`
    does.
    """
    with _open_index(index_folder) as index:
        tables = {name: Table(inside(place, name), schema, topic_id) for name, schema in SCHEMAS.items()}
        position = index.position() or begin(topic_id)
        ahead = position.offset > tables[REQUESTS].offset or position.topic_id != topic_id
        fresh = any(table.made for table in tables.values())
        older = offset_of(index.parties.position()) < position.offset  # made by a release that kept no registrations
        if not (position.offset > BEGIN and (ahead or fresh or older)):
            yield TablesWriter(tables, index, position, on_step, salvages)
            return
    shutil.rmtree(index_folder)
    with _open_index(index_folder) as index:
        yield TablesWriter(tables, index, begin(topic_id), on_step, salvages)


@contextmanager
def _open_index(folder: Path) -> Iterator[Index]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise PlaceUnavailable(f"{folder}: {error.strerror}") from None
    index = RocksIndex(folder)
    try:
        yield index
    finally:
        index.close()


async def write_tables(
    log: RequestLog,
    writer: TablesWriter,
    *,
    interval_s: float | None = None,
    run_records: int = RUN_RECORDS,
    progress: Callable[[int], None] = lambda offset: None,
) -> None:
    """Append all that the log has now. With `interval_s` go on for ever: a run is what comes in that time, or
    `run_records`.

    `progress` gets the offset that the tables reached, also when the log says that there is nothing new.
    Raises LogRefused, LogUnavailable, and as `TablesWriter.append` does.
    """
    end = await log.end_offset()
    reader = await open_reading_on(log, writer.position.offset + 1)
    try:
        while interval_s is not None or writer.position.offset + 1 < end:
            if interval_s is None:
                records = await _run(reader, min(run_records, end - writer.position.offset - 1), READ_WAIT_S)
            else:
                records = await _run(reader, run_records, interval_s)
            if records:
                writer.append(records)
            elif end > writer.position.offset + 1:  # as it was before this read
                raise LogUnavailable(f"no record after offset {writer.position.offset}, and the log ends at {end}")
            else:
                end = await log.end_offset()  # nothing new is a success only while the log answers
            progress(writer.position.offset)
    finally:
        await reader.close()


async def _run(reader: LogReader, records_max: int, wait_s: float) -> LogRecords:
    """So many of the next records, or those that come within this time: few records a second make few files.

    A read returns with what is there. Of a log that grows all the time that may be a few records, again and again.
    """
    records: list[tuple[int, bytes]] = []
    until_s = monotonic() + wait_s
    while len(records) < records_max and (left_s := until_s - monotonic()) > 0:
        records += await reader.read(records_max - len(records), left_s)
    return records
