"""What the ordered judge needs of each record, made by many tasks, and what rows need of each verdict. Pure.

A task decodes a stretch of the log. Of a request record it passes on what the void rule and the rules ask for, packed;
signature, user and texts stay behind. All other records are few and go on in their bytes: barriers, signs of life,
notes, lost records, and what no decoder accepts. So does the newest record of a stretch: the position may have its
digest.

The verdicts come back by log offset. A task decodes its stretch again and makes the rows of every table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.tables.rows import SCHEMAS, rows_of
from replica.log.interface import LogRecords
from replica.notary.counted import CountedRequest
from replica.notary.errors import BadRequest, InvariantBroken
from replica.notary.position import Position
from replica.notary.reading import Reading, RunReader
from replica.notary.records import NO_PARTS, RequestRecord, Undecodable, decode_record, format_named
from replica.notary.requests import Request, TimeWindow
from replica.notary.rules import Conflict, Outcome, Verdict
from replica.notary.terms import Signed, Terms, signed_in

if TYPE_CHECKING:
    from pipeline.tables.write import Judged, OrderedJudge  # a worker has neither an index nor Delta's library

DENSE = pa.schema([("offset", pa.int64()), ("packed", pa.binary()), ("value", pa.binary())])
"""A record: packed, if it is a request, or its bytes."""
DECISIONS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("judged_us", pa.int64(), nullable=False),
        pa.field("rules_version", pa.int8(), nullable=False),
        pa.field("ledger_offset", pa.int64(), nullable=False),
        pa.field("outcome", pa.int8(), nullable=False),  # its place in Outcome
        ("notarised_offset", pa.int64()),
        ("conflicts", pa.binary()),
    ]
)
"""A request that counts."""

BY_TABLE = pa.schema([(name, pa.struct(list(schema))) for name, schema in SCHEMAS.items()])
"""Rows of all tables, each in the column that is named for its table; null where a table has fewer rows. Two rows that
stand side by side have nothing to do with each other."""

DenseRecord = tuple[int, bytes | None, bytes | None]
_OUTCOMES = tuple(Outcome)
_PLACES = {outcome: place for place, outcome in enumerate(_OUTCOMES)}


class _Packed(msgspec.Struct, array_like=True, gc=False):
    """A request record without its canonical bytes, signature and texts. `is_named_after`: its command has the
    transaction's id."""

    format: int
    activation_id: bytes
    sequence: int
    stamp_us: int
    deduplication_us: int
    after: int | None
    public_key: bytes
    is_named_after: bool
    ledger_id: bytes
    tx_id: bytes
    inputs: tuple[bytes, ...]
    references: tuple[bytes, ...]
    from_us: int | None
    until_us: int | None
    party: str
    content_digest: bytes
    change_id: bytes


_encoder = msgspec.msgpack.Encoder()
_packed_decoder = msgspec.msgpack.Decoder(_Packed)
_conflicts_decoder = msgspec.msgpack.Decoder(tuple[Conflict, ...])


def dense_of(offsets: Sequence[int], values: Sequence[bytes | None]) -> pa.RecordBatch:
    """The rows of DENSE of some records; a null value is read as b'', as a replica does."""
    packed = [_packed(value or b"") for value in values]
    if packed:
        packed[max(range(len(offsets)), key=offsets.__getitem__)] = None
    rest = [(value or b"") if one is None else None for one, value in zip(packed, values, strict=True)]
    columns = (pa.array(offsets, pa.int64()), pa.array(packed, pa.binary()), pa.array(rest, pa.binary()))
    return pa.RecordBatch.from_arrays(list(columns), schema=DENSE)


def _packed(value: bytes) -> bytes | None:
    """A request record without what neither void rule nor rules ask for; None: it is to be read in its bytes."""
    try:
        record = decode_record(value, format_named(value))
        if not isinstance(record, RequestRecord):
            return None
        request, digest, terms, command = signed_in(record)
    except (Undecodable, BadRequest):
        return None
    window = request.window or TimeWindow()
    return _encoder.encode(
        _Packed(
            record.format,
            record.activation_id,
            record.sequence,
            record.stamp_us,
            record.deduplication_us,
            terms.ledger_offset,
            record.public_key,
            terms.command_id == request.tx_id.hex(),
            request.ledger_id,
            request.tx_id,
            request.inputs,
            request.references,
            window.from_us,
            window.until_us,
            request.party,
            digest,
            command,
        )
    )


def _unpacked(packed: bytes) -> tuple[RequestRecord, Signed]:
    """The request as void rule and rules see it; what they do not ask for is empty."""
    one = _packed_decoder.decode(packed)
    head = (one.format, one.activation_id, one.sequence, one.stamp_us)
    record = RequestRecord(*head, b"", one.deduplication_us, "", one.public_key, b"", NO_PARTS, (), ())
    terms = Terms("", one.tx_id.hex() if one.is_named_after else "", (), ledger_offset=one.after)
    is_open = one.from_us is None and one.until_us is None
    window = None if is_open else TimeWindow(one.from_us, one.until_us)
    request = Request(one.ledger_id, one.tx_id, one.inputs, one.references, window, one.party)
    return record, Signed(request, one.content_digest, terms, one.change_id)


def dense_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task: the rows of DENSE of batches with the columns `offset` and `value`."""
    for batch in batches:
        yield dense_of(batch.column("offset").to_pylist(), batch.column("value").to_pylist())


def records_of(rows: pa.Table) -> list[DenseRecord]:
    """The records of rows of DENSE, in log order."""
    ordered = rows.sort_by("offset")
    return list(zip(*[ordered[name].to_pylist() for name in DENSE.names], strict=True))


def read_dense(position: Position, records: Iterable[DenseRecord]) -> Reading:
    """`read_records` for records of this form. Raises as it does."""
    run = RunReader(position)
    for offset, packed, value in records:
        if packed is not None:
            run.take_decoded(offset, *_unpacked(packed))
        else:
            run.take(offset, value or b"")
    return run.reading()


def judged_of(judge: OrderedJudge, records: Sequence[DenseRecord]) -> Judged:
    """Judge the next records. Raises FormatUnknown, and as `OrderedJudge.judge` does."""
    values = [(offset, value or b"") for offset, _, value in records]
    return judge.judge(read_dense(judge.position, records), values)


class Decisions(NamedTuple):
    """What was decided about records, in log order, as rows of DECISIONS; and for each state that a refusal names the
    log offset at which it was consumed."""

    rows: pa.Table
    consumed_at: Mapping[bytes, int]


def decisions_of(judged: Judged) -> Decisions:
    """What tasks need to know of a run of records."""
    columns: list[list[Any]] = [[] for _ in DECISIONS.names]
    for entry, verdict in judged.decided:
        if not isinstance(entry, CountedRequest) or verdict is None:
            continue
        conflicts = _encoder.encode(verdict.conflicts) if verdict.conflicts else None
        of_verdict = (_PLACES[verdict.outcome], verdict.notarised_offset, conflicts)
        row = (entry.offset, entry.judged_us, entry.rules_version, entry.ledger_offset, *of_verdict)
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DECISIONS, strict=True)]
    return Decisions(pa.Table.from_arrays(arrays, schema=DECISIONS), judged.consumed_at)


def rows_of_stretch(decisions: Decisions, records: LogRecords) -> dict[str, pa.Table]:
    """The rows of all tables that come from requests among these records of one run, without a gap."""
    first, end = records[0][0], records[-1][0] + 1
    if [offset for offset, _ in records] != list(range(first, end)):
        raise InvariantBroken(f"a task got {len(records)} records for the offsets {first} to {end - 1}")
    offsets = decisions.rows["offset"]
    picked = decisions.rows.filter(pc.and_(pc.greater_equal(offsets, first), pc.less(offsets, end)))
    rows = zip(*[column.to_pylist() for column in picked.columns], strict=True)
    decided = [_decided(row, records[row[0] - first][1]) for row in rows]
    return rows_of(decided, (), (), decisions.consumed_at.__getitem__)


def row_batches(
    decisions: Decisions, reached: Mapping[str, int], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """A task: the rows of BY_TABLE that tables lack, of batches with the columns `offset` and `value`.

    What was not decided in this run has no rows. `reached`: as `lacking` has it.
    """
    for batch in batches:
        values = [value or b"" for value in batch.column("value").to_pylist()]
        for records in _stretches(sorted(zip(batch.column("offset").to_pylist(), values, strict=True))):
            yield _side_by_side(lacking(rows_of_stretch(decisions, records), reached))


def lacking(rows: Mapping[str, pa.Table], reached: Mapping[str, int]) -> dict[str, pa.Table]:
    """The rows that each table lacks, which has those up to a log offset.

    Not a filter of Spark's: the offset would be a literal, and each batch would compile code of its own.
    """
    return {name: some.filter(pc.greater(some["log_offset"], reached[name])) for name, some in rows.items()}


def _stretches(records: LogRecords) -> Iterator[LogRecords]:
    """Ascending records, parted where offsets jump: a task may have read parts of the log that are no neighbours."""
    for _, stretch in groupby(enumerate(records), lambda one: one[1][0] - one[0]):
        yield [record for _, record in stretch]


def _side_by_side(tables: Mapping[str, pa.Table]) -> pa.RecordBatch:
    """The rows of each table in its own column of BY_TABLE, from the top; so there are as few rows as can be."""
    length = max(map(len, tables.values()))
    columns = []
    for field in BY_TABLE:
        rows = [part.to_struct_array() for part in tables[field.name].to_batches()]
        columns.append(pa.concat_arrays([*rows, pa.nulls(length - len(tables[field.name]), field.type)]))
    return pa.RecordBatch.from_arrays(columns, schema=BY_TABLE)


def rows_of_few(judged: Judged) -> dict[str, pa.Table]:
    """The other rows of a run: of barriers that came into force and of lost records."""
    return rows_of((), judged.reading.barriers, judged.lost, judged.consumed_at.__getitem__)


def _decided(row: tuple[Any, ...], value: bytes) -> tuple[CountedRequest, Verdict]:
    offset, judged_us, rules_version, ledger_offset, place, notarised_offset, conflicts = row
    record = decode_record(value, format_named(value))
    if not isinstance(record, RequestRecord):
        raise InvariantBroken(f"the record at offset {offset} was judged as a request")
    named = _conflicts_decoder.decode(conflicts) if conflicts else ()
    return (
        CountedRequest(offset, ledger_offset, record, *signed_in(record), judged_us, rules_version),
        Verdict(_OUTCOMES[place], notarised_offset, named),
    )
