"""Compares an index with the log, entry by entry, for the scrub. Pure but for look-ups in the index.

Each run of records is judged again, which gives the old verdicts on a newer index as well. So the index must have
exactly the entries that the run adds, and no other entry recorded in that run. A check that starts at the log's first
record finds missing, changed and invented entries that way, and a log that has changed.

The check notes digests at offsets that all replicas choose alike. Replicas check at different times, yet can be
compared: two that derived the same verdicts from the same log have the same digest at the same offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

import msgspec

from replica.following.apply import Applied, judge_records, notes_in
from replica.index.compare import recorded_at
from replica.index.interface import Index
from replica.index.summary import IndexSummary, add_entries
from replica.log.interface import LogRecords
from replica.notary.acceptances import first_key
from replica.notary.counted import CountedRequest
from replica.notary.errors import IndexMismatch, LogRefused
from replica.notary.parties import entry_keys_of
from replica.notary.position import Position, begin
from replica.notary.rules import keys_of
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.notary.untrusted import UNREADABLE

CHECK_VERSION = 4
MARK_SPACING = 4_096  # records between two digests; doubled as the log grows
MARKS_MAX = 16
CHECKSUM_BYTES = 32


class IndexCheck(msgspec.Struct, frozen=True, array_like=True):
    """How far a check has come, the digest of the index up to there, and the digests on the way.

    `marks`: for each number of records that is a multiple of `spacing`, the digest after them. Marks ahead of the
    position come from the check before.
    """

    version: int
    position: Position
    entry_count: int
    digest: bytes
    spacing: int = MARK_SPACING
    marks: tuple[tuple[int, bytes], ...] = ()
    began_us: int = 0  # when this pass began, microseconds UTC; 0 before it did


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(IndexCheck)


def begin_check(topic_id: str, before: IndexCheck | None = None) -> IndexCheck:
    """A check from the log's first record; it keeps the marks of the one before, and is compared with them."""
    if before is None:
        return IndexCheck(CHECK_VERSION, begin(topic_id), 0, bytes(32))
    return IndexCheck(CHECK_VERSION, begin(topic_id), 0, bytes(32), before.spacing, before.marks)


def room_of(check: IndexCheck, applied_offset: int, records_max: int) -> int:
    """How many records the next run may have: only applied ones, and none past the next mark."""
    checked = check.position.offset + 1
    to_mark = check.spacing - checked % check.spacing
    return max(0, min(records_max, applied_offset + 1 - checked, to_mark))


def continue_check(
    index: Index, check: IndexCheck, records: LogRecords, salvages: Salvages = NO_SALVAGES
) -> IndexCheck:
    """Compare the index with the next records. Raises IndexMismatch where they differ, IndexUnreadable, and LogRefused
    when the log up to a mark is not what it was in the check before."""
    applied, added = compare_run(index, check.position, records, salvages)
    before = IndexSummary(check.position, check.entry_count, check.digest)
    summary = add_entries(before, applied.position, added.items())
    checked = msgspec.structs.replace(
        check, position=applied.position, entry_count=summary.entry_count, digest=summary.digest
    )
    return _mark(checked)


def compare_run(
    index: Index, position: Position, records: LogRecords, salvages: Salvages = NO_SALVAGES
) -> tuple[Applied, dict[bytes, bytes]]:
    """Judge the records after `position` again; also returns the entries that they make. Raises IndexMismatch unless
    the index has these, and no others recorded there, and what `judge_records` raises."""
    applied, added = judge_records(index, position, records, salvages)
    notes = notes_in(applied.reading)
    requests = [entry for entry in applied.reading.counted if isinstance(entry, CountedRequest)]
    wanted = [key for entry in requests for key in (*keys_of(entry), first_key(entry.change_id))]
    keys = list(dict.fromkeys([*wanted, *entry_keys_of(notes), *added]))
    recorded = range(position.offset + 1, applied.position.offset + 1)
    _compare(recorded, keys, index.lookup(keys) if keys else [], added)
    return applied, added


def _compare(
    recorded: range, keys: Sequence[bytes], found: Sequence[bytes | None], expected: Mapping[bytes, bytes]
) -> None:
    """Raises IndexMismatch unless exactly the expected entries were recorded at these offsets."""
    for key, value in zip(keys, found, strict=True):
        recorded_here = value is not None and recorded_at(value) in recorded
        if (value if recorded_here else None) != expected.get(key):
            raise IndexMismatch(_difference(key, value, expected.get(key)))


def check_complete(check: IndexCheck, entry_count: int) -> None:
    """Compare the number of entries, once the check is where the index is. Raises IndexMismatch."""
    if check.entry_count != entry_count:
        raise IndexMismatch(
            f"up to offset {check.position.offset} the log makes {check.entry_count} entries,"
            f" the index has {entry_count}"
        )


def encode_check(check: IndexCheck) -> bytes:
    """The bytes that a check is stored as. A checksum comes first: a damaged bookmark would keep a replica down."""
    body = _encoder.encode(check)
    return sha256(body).digest() + body


def decode_check(raw: bytes) -> IndexCheck | None:
    """The stored check; None when the bytes are damaged or another release's, which costs time only."""
    checksum, body = raw[:CHECKSUM_BYTES], raw[CHECKSUM_BYTES:]
    if sha256(body).digest() != checksum:
        return None
    try:
        check = _decoder.decode(body)
    except UNREADABLE:
        return None
    return check if check.version == CHECK_VERSION else None


def _mark(check: IndexCheck) -> IndexCheck:
    """Note the digest if a mark was reached; the spacing doubles when there are too many."""
    checked = check.position.offset + 1
    if checked % check.spacing:
        return check
    marks = dict(check.marks)
    if marks.get(checked, check.digest) != check.digest:
        raise LogRefused(f"the first {checked} records are not what they were when they were last read")
    marks[checked] = check.digest
    spacing = check.spacing
    while len(marks) > MARKS_MAX:
        spacing *= 2
        marks = {at: digest for at, digest in marks.items() if at % spacing == 0}
    return msgspec.structs.replace(check, spacing=spacing, marks=tuple(sorted(marks.items())))


def _difference(key: bytes, found: bytes | None, expected: bytes | None) -> str:
    says = [None if value is None else value.hex() for value in (found, expected)]
    return f"key {key.hex()}: the index has {says[0]}, the log makes {says[1]}"
