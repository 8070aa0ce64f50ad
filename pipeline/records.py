"""Rows of the log as typed columns, by the replica's own decoding and void rule.

Every column of `COLUMNS` can be asked for; null where a kind of record has no such thing. What `judged_us` and `kind`
say is exactly what a replica that reads the log from its start would say, whatever the partitions are: a first pass
surveys them (pipeline/survey.py), a second reads each with `read_records` from the position that it starts at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pipeline.survey import Survey, Surveyor, advance
from replica.notary.errors import InvariantBroken
from replica.notary.position import Position, begin
from replica.notary.reading import Counted, CountedRequest, VoidReason, read_records
from replica.notary.records import BarrierRecord, SettlementRecord, decode_record, record_digest
from replica.notary.requests import Request, Submission

BARRIER, REQUEST, SETTLEMENT, VOID = "barrier", "request", "settlement", "void"
BATCH_RECORDS = 10_000  # records decoded together

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True, slots=True)
class LogRow:
    """One record, with all that reading the log up to it tells."""

    offset: int
    value: bytes
    epoch: int  # in force at this record, a barrier's own included; 0 before the first
    barrier: BarrierRecord | None = None
    counted: Counted | None = None
    void: VoidReason | None = None

    @property
    def kind(self) -> str:
        """BARRIER, REQUEST, SETTLEMENT or VOID."""
        if self.counted is not None:
            return REQUEST if isinstance(self.counted, CountedRequest) else SETTLEMENT
        return BARRIER if self.void is None else VOID

    @property
    def entry(self) -> CountedRequest | None:
        """The request record, if it is one that counts."""
        return self.counted if isinstance(self.counted, CountedRequest) else None

    @property
    def request(self) -> Request | None:
        """The request, if it counts."""
        return None if self.entry is None else self.entry.request

    @property
    def submission(self) -> Submission | None:
        """The submission, if it counts."""
        return None if self.entry is None else self.entry.record.submission


@dataclass(frozen=True, slots=True)
class Column:
    """A column: its type for Spark and for Arrow, and how a row has it."""

    sql: str
    arrow: pa.DataType
    get: Callable[[LogRow], Any]


def _of(part: str, name: str) -> Callable[[LogRow], Any]:
    """Attribute `name` of a row's part, null where the row has no such part."""

    def get(row: LogRow) -> Any:
        found = getattr(row, part)
        return None if found is None else getattr(found, name, None)

    return get


def _window(name: str) -> Callable[[LogRow], Any]:
    def get(row: LogRow) -> Any:
        window = None if row.request is None else row.request.window
        return None if window is None else getattr(window, name)

    return get


def _record(name: str) -> Callable[[LogRow], Any]:
    return lambda row: None if row.counted is None else getattr(row.counted.record, name, None)


def _settled(row: LogRow) -> Any:
    record = None if row.counted is None else row.counted.record
    return (
        [msgspec.structs.asdict(command) for command in record.commands]
        if isinstance(record, SettlementRecord)
        else None
    )


_COMMAND = pa.struct(
    [
        ("user_id", pa.string()),
        ("command_id", pa.string()),
        ("act_as", pa.list_(pa.string())),
        ("submission_id", pa.string()),
        ("tx_id", pa.binary()),
        ("content_digest", pa.binary()),
    ]
)
_COMMAND_SQL = (
    "struct<user_id:string,command_id:string,act_as:array<string>,submission_id:string,tx_id:binary,"
    "content_digest:binary>"
)
_BINARIES, _TEXTS = ("array<binary>", pa.list_(pa.binary())), ("array<string>", pa.list_(pa.string()))
_LONG, _INT, _BINARY, _TEXT = (
    ("bigint", pa.int64()),
    ("int", pa.int32()),
    ("binary", pa.binary()),
    ("string", pa.string()),
)

COLUMNS: Mapping[str, Column] = {
    "offset": Column(*_LONG, lambda row: row.offset),
    "kind": Column(*_TEXT, lambda row: row.kind),
    "void_reason": Column(*_TEXT, lambda row: None if row.void is None else row.void.value),
    "record_digest": Column(*_BINARY, lambda row: record_digest(row.value)),
    "epoch": Column(*_LONG, lambda row: row.epoch),
    # what barriers, requests and settlements that count have
    "activation_id": Column(
        *_BINARY, lambda row: row.barrier.activation_id if row.barrier else _record("activation_id")(row)
    ),
    "replica": Column(*_TEXT, _of("barrier", "replica")),
    "database": Column(*_TEXT, _of("barrier", "database")),
    "sequence": Column(*_LONG, _record("sequence")),
    "commands": Column(f"array<{_COMMAND_SQL}>", pa.list_(_COMMAND), _settled),
    "judged_us": Column(*_LONG, _of("counted", "judged_us")),
    "rules_version": Column(*_INT, _of("entry", "rules_version")),
    "stamp_us": Column(*_LONG, _record("stamp_us")),
    # a request that counts
    "tx_id": Column(*_BINARY, _of("request", "tx_id")),
    "content_digest": Column(*_BINARY, _of("entry", "content_digest")),
    "inputs": Column(*_BINARIES, _of("request", "inputs")),
    "references": Column(*_BINARIES, _of("request", "references")),
    "from_us": Column(*_LONG, _window("from_us")),
    "until_us": Column(*_LONG, _window("until_us")),
    "party": Column(*_TEXT, _of("request", "party")),
    "request": Column(*_BINARY, _of("submission", "request")),
    "public_key": Column(*_BINARY, _of("submission", "public_key")),
    "signature": Column(*_BINARY, _of("submission", "signature")),
    "user_id": Column(*_TEXT, _of("submission", "user_id")),
    "command_id": Column(*_TEXT, _of("submission", "command_id")),
    "act_as": Column(*_TEXTS, _of("submission", "act_as")),
    "submission_id": Column(*_TEXT, _of("submission", "submission_id")),
}


def sql_schema(columns: Sequence[str]) -> str:
    """The schema of these columns, as Spark reads it."""
    return ", ".join(f"`{name}` {COLUMNS[name].sql}" for name in columns)


def decoded(rows: DataFrame, columns: Sequence[str], start: Position | None = None) -> DataFrame:
    """In: `offset`, `value`; partitions are stretches of the log without a gap or overlap, each in log order, the same
    ones whenever the frame is computed; the first record is the one behind `start`, by default offset 0.
    Out: these columns of COLUMNS, one row a record. Runs a job at once, the survey; two passes over the rows in all.

    Raises InvariantBroken on a gap, and FormatUnknown.
    """
    rows = rows.select("offset", "value")
    surveys = [
        msgspec.msgpack.decode(row.survey, type=Survey)
        for row in rows.mapInArrow(_survey_batches, "survey binary").collect()
    ]

    def read_exactly(survey: Survey, position: Position) -> Position:
        stretch = rows.where(F.col("offset").between(survey.first, survey.last)).orderBy("offset").toLocalIterator()
        return read_records(position, ((row.offset, bytes(row.value or b"")) for row in stretch)).position

    starts = starts_of(surveys, begin("") if start is None else start, read_exactly)

    def read(batches: Batches) -> Batches:
        yield from typed_batches(_pairs(batches), starts, columns)

    return rows.mapInArrow(read, sql_schema(columns))


def starts_of(
    surveys: Iterable[Survey], start: Position, read_exactly: Callable[[Survey, Position], Position]
) -> dict[int, Position]:
    """The position before each stretch, by the stretch's first offset.

    `read_exactly` gives the position behind a stretch whose survey does not tell it. Raises InvariantBroken on a gap.
    """
    starts: dict[int, Position] = {}
    position = start
    for survey in sorted(surveys, key=lambda survey: survey.first):
        starts[survey.first] = position
        position = advance(position, survey) or read_exactly(survey, position)
    return starts


def typed_batches(
    records: Iterable[tuple[int, bytes]], starts: Mapping[int, Position], columns: Sequence[str]
) -> Batches:
    """The columns of a stretch of the log, a few thousand records at a time; `starts` as of `starts_of`."""
    position: Position | None = None
    for batch in _in_batches(records):
        if position is None:
            position = starts.get(batch[0][0])
            if position is None:
                raise InvariantBroken(f"offset {batch[0][0]} is not where a surveyed stretch begins")
        rows, position = read_rows(position, batch)
        arrays = [pa.array([COLUMNS[name].get(row) for row in rows], COLUMNS[name].arrow) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, list(columns))


def read_rows(position: Position, records: Sequence[tuple[int, bytes]]) -> tuple[list[LogRow], Position]:
    """Read records that follow a position, as `read_records` does: a row for each, and the position behind them."""
    reading = read_records(position, records)
    counted = {entry.offset: entry for entry in reading.counted}
    voids = {void.offset: void.reason for void in reading.voids}
    rows = []
    epoch = position.epoch
    for offset, value in records:
        barrier = None
        if offset not in counted and offset not in voids:  # a barrier that came into force, or a repeat of it
            record = decode_record(value, 0)
            if not isinstance(record, BarrierRecord):
                raise InvariantBroken(f"the record at offset {offset} is neither void nor counted nor a barrier")
            barrier, epoch = record, record.epoch
        rows.append(LogRow(offset, value, epoch, barrier, counted.get(offset), voids.get(offset)))
    return rows, reading.position


def _survey_batches(batches: Batches) -> Batches:
    """In: `offset`, `value`. Out: one row, `survey`, unless there are no rows."""
    surveyor = Surveyor()
    for offset, value in _pairs(batches):
        surveyor.take(offset, value)
    survey = surveyor.survey()
    if survey is not None:
        yield pa.RecordBatch.from_pydict({"survey": [msgspec.msgpack.encode(survey)]})


def _pairs(batches: Batches) -> Iterator[tuple[int, bytes]]:
    for batch in batches:
        offsets, values = batch.column(0).to_pylist(), batch.column(1).to_pylist()
        for offset, value in zip(offsets, values, strict=True):
            yield offset, value or b""  # a null value is read as the replica reads it


def _in_batches(records: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    batch: list[tuple[int, bytes]] = []
    for record in records:
        batch.append(record)
        if len(batch) == BATCH_RECORDS:
            yield batch
            batch = []
    if batch:
        yield batch
