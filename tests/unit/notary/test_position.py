"""Positions: one form each, strict, and a newer release's are recognised by their version."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.notary.errors import FormatUnknown
from replica.notary.granters import Claim, Database
from replica.notary.position import POSITION_VERSION, Position, begin, decode_position, encode_position
from replica.notary.reading import read_records
from replica.notary.records import BarrierRecord
from tests.worlds.notary_logs import LogMaker

BARRIER = BarrierRecord(3, b"a" * 16, "R1", Database("postgres", "1", 1), 2, 3)
POSITION = Position(POSITION_VERSION, b"L" * 16, "topic", 9, b"d" * 32, BARRIER, 4, 1_000, ((0, 3), (5, 6)))
CLAIM = BarrierRecord(3, b"a" * 16, "R1", Claim(3), 2, 3)
LEASED = Position(POSITION_VERSION, b"L" * 16, "topic", 9, b"d" * 32, CLAIM, 4, 1_000, ((0, 3),), 8)


@pytest.mark.parametrize("position", [begin("topic"), POSITION, LEASED])
def test_a_position_survives_its_bytes(position: Position) -> None:
    """Goal: reading goes on where it stopped. Method: encode, decode, compare."""
    assert decode_position(encode_position(position)) == position


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc0",
        encode_position(POSITION)[:-1],
        encode_position(POSITION) + b"\x00",
        msgspec.msgpack.encode([4, "topic"]),
        msgspec.msgpack.encode([4, 5, 0, b"", None, -1, 0, [], -1]),
        b"\x9a" + encode_position(POSITION)[1:] + b"\x00",
        b"\x9a" + encode_position(POSITION)[1:] + b"\x91" * 200_000 + b"\x90",
        encode_position(POSITION).replace(b"\xa5topic", b"\xa5to\xffic"),
        encode_position(msgspec.structs.replace(POSITION, barrier=msgspec.structs.replace(BARRIER, epoch=0))),
        b"\xdc\x00\x09" + encode_position(POSITION)[1:],
    ],
)
def test_damaged_bytes_are_refused_with_one_error(raw: bytes) -> None:
    """Goal: no half-read position, no other exception. Method: cut, extend, damage, other encodings of the same."""
    with pytest.raises(FormatUnknown, match="cannot be read"):
        decode_position(raw)


@pytest.mark.parametrize("fields", [[5], [5, "topic", 1, 2, 3, 4, 5, 6, 7], [5, {"laid": "out otherwise"}], [3, "t"]])
def test_another_position_is_told_by_its_version(fields: list[object]) -> None:
    """Goal: the operator learns what is wrong, whatever the other layout. Method: layouts before and after this one."""
    with pytest.raises(FormatUnknown, match=f"version {fields[0]}"):
        decode_position(msgspec.msgpack.encode(fields))


def test_a_position_has_the_holders_newest_record() -> None:
    """Goal: a reader that starts there judges claims as one that read all. Method: read on from each offset."""
    maker = LogMaker()
    maker.claim(1, -1)
    maker.live()
    maker.raw(maker.values[0])  # a copy of the barrier is no sign of life
    maker.claim(2, 0, wins=False)
    maker.claim(3, 1)
    maker.barrier(4)
    found = [read_records(begin("topic"), maker.log[:end]).position for end in range(1, 7)]
    assert [position.counted_offset for position in found] == [0, 1, 1, 1, 4, 5]
    for position in found:
        assert decode_position(encode_position(position)) == position
        rest = maker.log[position.offset + 1 :]
        assert read_records(position, rest).position == found[-1]


def test_nothing_is_read_after_a_barrier_that_is_not_known() -> None:
    """Goal: records are not taken for void by guess. Method: a position after a barrier of format 3."""
    barrier = msgspec.structs.replace(BARRIER, record_format=3, rules_version=3)
    position = msgspec.structs.replace(POSITION, barrier=barrier)
    with pytest.raises(FormatUnknown):
        read_records(position, [])


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, len(encode_position(POSITION)) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_another_position(at: int, change: int) -> None:
    """Goal: bytes and positions match one to one. Method: change one byte."""
    raw = bytearray(encode_position(POSITION))
    raw[at] ^= change
    try:
        position = decode_position(bytes(raw))
    except FormatUnknown:
        return
    assert encode_position(position) == bytes(raw)
    assert position != POSITION
