"""Marks as bytes: bounded, whole, and from anybody."""

from __future__ import annotations

import msgspec
import pytest

from replica.notary.errors import BadRequest
from replica.notary.granters import NAME_MAX, Claim, Pause
from replica.notary.marks import MARK_MAX_BYTES, MarksTold, decode_mark, mark_of, mark_text, read_mark
from replica.notary.position import POSITION_VERSION, Position, begin, encode_position
from replica.notary.records import FORMAT, BarrierRecord
from tests.worlds.marks_world import mark


def test_a_mark_is_a_position_without_sequence_numbers() -> None:
    many = tuple((2 * at, 2 * at + 1) for at in range(10_000))
    position = msgspec.structs.replace(mark(3), seen=many)
    assert mark_of(position) == mark(3)
    assert read_mark(mark_text(position)) == mark(3)
    assert read_mark("") is None
    assert mark_text(None) == ""


def test_the_largest_mark_fits() -> None:
    text = "~" * NAME_MAX
    record = BarrierRecord(
        2**63 - 1, b"\xff" * 16, text, Pause(text, text, 2**63 - 1, text), FORMAT, 3, (text, 2**63 - 1)
    )
    largest = Position(
        POSITION_VERSION, b"L" * 16, "x" * 255, 2**63 - 1, b"\xff" * 32, record, 2**63 - 1, 2**63 - 1, (), 2**63 - 1
    )
    raw = encode_position(largest)
    assert decode_mark(raw) == largest
    assert len(raw) <= MARK_MAX_BYTES


def raw_of(**changed: object) -> bytes:
    return encode_position(msgspec.structs.replace(mark(3), **changed))


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x00",
        b"x" * (MARK_MAX_BYTES + 1),
        b"\x91" * 1_000,
        encode_position(begin("memory-1")),
        raw_of(offset=-1),
        raw_of(offset=2**63),
        raw_of(offset=-(2**63)),
        raw_of(digest=b""),
        raw_of(digest=b"\x00" * 33),
        raw_of(topic_id=""),
        raw_of(topic_id="x" * 256),
        raw_of(barrier_offset=4),
        raw_of(barrier_offset=-1),
        raw_of(seen=((0, 1),)),
        raw_of(version=9),
        encode_position(mark(3)) + b"\x00",
    ],
    ids=range(17),
)
def test_what_no_replica_says_is_refused(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        decode_mark(raw)


def test_a_leased_mark_has_its_count_between_barrier_and_end() -> None:
    record = BarrierRecord(1, b"\x01" * 16, "R1", Claim(-1), 2, 3)
    leased = Position(POSITION_VERSION, b"L" * 16, "log", 5, b"\x01" * 32, record, 2, 0, (), 4)
    assert decode_mark(encode_position(leased)) == leased
    with pytest.raises(BadRequest):
        decode_mark(encode_position(msgspec.structs.replace(leased, counted_offset=6)))


@pytest.mark.parametrize(
    "told",
    [
        {"applied": "f" * 100_000},
        {"synced": {f"r{number}": "" for number in range(100)}},
        {"synced": {"x" * 1_000: ""}},
        {"contradicted": 7},
    ],
    ids=range(4),
)
def test_a_document_is_bounded(told: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(told, MarksTold)
