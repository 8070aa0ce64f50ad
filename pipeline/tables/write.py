"""The tables' job: reads the log in order, judges it, and appends to every table what each run of records adds.

The job's own index lags the tables, never the other way round: a run is judged, then appended, then written to the
index. A job that was killed in between judges the run again. Each table passes over the rows that it has, so it does
not matter where the runs end. An index without its tables, or of a table that was made anew, starts from the beginning.
"""

from __future__ import annotations

import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple, TypeVar

from pipeline.tables.delta import Table
from pipeline.tables.rows import COMPLETIONS, CONFLICTS, EPOCHS, LOST, REQUESTS, SCHEMAS, VERDICTS, LostRecord, rows_of
from replica.following.apply import judge_reading
from replica.index.interface import Index
from replica.index.rocks import RocksIndex
from replica.log.interface import LogReader, LogRecords, RequestLog
from replica.log.reading_on import open_reading_on
from replica.notary.counted import Counted
from replica.notary.errors import InvariantBroken, LogUnavailable, PlaceUnavailable
from replica.notary.places import Place, inside
from replica.notary.position import BEGIN, Position, begin
from replica.notary.reading import Reading, VoidReason, read_records
from replica.notary.rules import STATE_KEY, Verdict, offset_in
from replica.notary.salvage import NO_SALVAGES, OF_STATES, Salvages, of_kinds, salvage_named

RUN_RECORDS = 20_000  # in one append, which also bounds the memory of the job
READ_WAIT_S = 10.0
Row = TypeVar("Row", bound=tuple[Any, ...])
OnStep = Callable[[str], None]  # after each step, by its name; a job may be killed after any of them


class Judged(NamedTuple):
    """A run of records: what was decided, in log order, and what the index gets of it once every table has its rows."""

    reading: Reading
    decided: list[tuple[Counted, Verdict | None]]
    lost: list[LostRecord]
    consumed_at: dict[bytes, int]  # log offset at which each state was consumed that a request was refused for
    added: dict[bytes, bytes]

    @property
    def offset(self) -> int:
        """Of the run's last record."""
        return self.reading.position.offset

    @property
    def row_counts(self) -> dict[str, int]:
        """How many rows each table gets; see `rows_of`."""
        verdicts = [verdict for _, verdict in self.decided if verdict is not None]
        return {
            REQUESTS: len(verdicts),
            VERDICTS: len(verdicts),
            CONFLICTS: sum(len(verdict.conflicts) for verdict in verdicts),
            COMPLETIONS: sum(verdict is not None for _, verdict in self.decided),
            EPOCHS: len(self.reading.barriers),
            LOST: len(self.lost),
        }


class OrderedJudge:
    """Judges the log run by run, by the replicas' rules, with the index of this job; see `open_judge`."""

    def __init__(self, index: Index, position: Position, salvages: Salvages) -> None:
        self._index = index
        self._salvages = salvages
        self.position = position

    def judge(self, reading: Reading, records: LogRecords) -> Judged:
        """Judge what was read of the next records. Nothing is written.

        `records`: the bytes of those that could not be decoded are looked at. Raises SalvageMissing for a lost record
        whose salvage is not held, IndexMismatch, and what the index raises.
        """
        applied, added = judge_reading(self._index, reading, self.position, records, self._salvages)
        decided = list(applied.decided())
        return Judged(
            reading,
            decided,
            list(self._lost(reading, records)),
            self._consumed_at(decided, added),
            added,
        )

    def advance(self, judged: Judged) -> None:
        """Note that every table has the run's rows."""
        self._index.write(judged.added, judged.reading.position)
        self.position = judged.reading.position

    def _consumed_at(
        self, decided: Iterable[tuple[Counted, Verdict | None]], added: Mapping[bytes, bytes]
    ) -> dict[bytes, int]:
        states = sorted({one.state for _, verdict in decided if verdict for one in verdict.conflicts})
        keys = [STATE_KEY + state for state in states]
        known = self._index.lookup(keys) if keys else []
        values = [added.get(key) or value for key, value in zip(keys, known, strict=True)]
        if None in values:
            raise InvariantBroken("a request was refused for a state that nobody had consumed")
        return {state: offset_in(value) for state, value in zip(states, values, strict=True) if value is not None}

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


class TablesWriter:
    """Appends to the tables in one folder, in this process; see `open_writer`."""

    def __init__(self, tables: dict[str, Table], judge: OrderedJudge, on_step: OnStep) -> None:
        self._tables = tables
        self._judge = judge
        self._on_step = on_step

    @property
    def position(self) -> Position:
        """After the last record of which every table has the rows, as far as the index knows."""
        return self._judge.position

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

        Raises FormatUnknown, what `OrderedJudge.judge` raises, and what `Table.append` and the index raise.
        """
        self._append(self._judge.judge(read_records(self.position, records), records))

    def _append(self, judged: Judged) -> None:
        at = judged.consumed_at.__getitem__
        rows = rows_of(judged.decided, judged.reading.barriers, judged.lost, at)
        for name, table in self._tables.items():
            if len(rows[name]) or name == REQUESTS:  # the last one: it notes how far all of them are
                table.append(rows[name], judged.offset)
                self._on_step(name)
        self._judge.advance(judged)
        self._on_step("index")


@contextmanager
def open_writer(
    place: Place,
    index_folder: Path,
    topic_id: str,
    on_step: OnStep = lambda name: None,
    salvages: Salvages = NO_SALVAGES,
) -> Iterator[TablesWriter]:
    """A writer in this process; arguments and errors as those of `open_judge`."""
    with open_judge(place, index_folder, topic_id, salvages) as (tables, judge):
        yield TablesWriter(tables, judge, on_step)


@contextmanager
def open_judge(
    place: Place, index_folder: Path, topic_id: str, salvages: Salvages = NO_SALVAGES
) -> Iterator[tuple[dict[str, Table], OrderedJudge]]:
    """The tables of one log, and a judge at the position of its index, which may be before that of the tables.

    `index_folder`: belongs to this job alone. `salvages`: those that lost records name. Raises IndexUnreadable when
    another process has the index open or it is damaged: remove it then, it is made anew from the log. Raises as `Table`
    does.
    """
    with _open_index(index_folder) as index:
        tables = {name: Table(inside(place, name), schema, topic_id) for name, schema in SCHEMAS.items()}
        position = index.position() or begin(topic_id)
        ahead = position.offset > tables[REQUESTS].offset or position.topic_id != topic_id
        fresh = any(table.made for table in tables.values())
        if not (position.offset > BEGIN and (ahead or fresh)):
            yield tables, OrderedJudge(index, position, salvages)
            return
    shutil.rmtree(index_folder)
    with _open_index(index_folder) as index:
        yield tables, OrderedJudge(index, begin(topic_id), salvages)


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
