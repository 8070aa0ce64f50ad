"""Records: what decodes, what is void for everyone, and that nothing else than Undecodable ever comes out."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.log.kafka.pointers import MAGIC, may_be_split, pointer_in, pointer_to
from replica.notary.granters import Database
from replica.notary.records import (
    RECORD_MAX_BYTES,
    ActRecord,
    BarrierRecord,
    Record,
    RegistrationRecord,
    RequestRecord,
    SalvageRecord,
    SignOfLifeRecord,
    Undecodable,
    decode_record,
    encode_record,
    request_record,
)
from replica.notary.requests import make_request
from replica.notary.terms import Terms, encode_canonical
from tests.worlds.beginning import LEDGER
from tests.worlds.notary_logs import PARTY, activation, request_of, submission_of, tx

BARRIER = BarrierRecord(7, activation(7), "R1", Database("postgres", "1", 1), 2, 3)
REQUEST = request_record(2, activation(7), 3, 1_000, submission_of(request_of(1, (1, 2), (3,))), 60_000_000)
LIFE = SignOfLifeRecord(2, activation(7), 4, 1_000)


def _request_with(**changes: object) -> bytes:
    return encode_record(msgspec.structs.replace(REQUEST, **changes))


def _extended(record: BarrierRecord | RequestRecord, depth: int = 0) -> bytes:
    value = encode_record(record)
    return bytes([value[0] + 1]) + value[1:] + b"\x91" * depth + b"\x90"


BROKEN = {
    "empty": b"",
    "nil": b"\xc0",
    "cut off": encode_record(REQUEST)[:-1],
    "one byte more": encode_record(REQUEST) + b"\x00",
    "an element more": _extended(REQUEST),
    "an element more, so deep that skipping it would exhaust the stack": _extended(REQUEST, 200_000),
    "a barrier with an element more": _extended(BARRIER),
    "a request without its last element": msgspec.msgpack.encode(msgspec.msgpack.decode(encode_record(REQUEST))[:-1]),
    "a map": msgspec.msgpack.encode({"kind": 1}),
    "an unknown kind": b"\x96\x03" + encode_record(REQUEST)[2:],
    "another format": _request_with(format=1),
    "a negative sequence number": _request_with(sequence=-1),
    "a sequence number that no position can hold": _request_with(sequence=2**63),
    "a negative stamp": _request_with(stamp_us=-1),
    "a stamp that no database column can hold": _request_with(stamp_us=2**63),
    "a short activation id": _request_with(activation_id=b"a" * 15),
    "a long activation id": _request_with(activation_id=b"a" * 17),
    "a short key": _request_with(public_key=b"k" * 31),
    "a long signature": _request_with(signature=b"s" * 65),
    "an empty submission id": _request_with(submission_id=""),
    "a submission id of 256 bytes": _request_with(submission_id="u" * 256),
    "a submission id of 256 bytes in 128 characters": _request_with(submission_id="é" * 128),
    "a submission id with a NUL, which no database column can hold": _request_with(submission_id="c\x00"),
    "a line end in the submission": _request_with(submission_id="a\nb"),
    "a line end that is not ASCII": _request_with(submission_id="a\u2028b"),
    "text that turns direction": _request_with(submission_id="a\u202eb"),
    "a control beyond ASCII": _request_with(submission_id="a\x85b"),
    "text that is not UTF-8": encode_record(REQUEST).replace(b"\xaasubmission", b"\xaasubmis\xffion"),
    "a disclosure root, and nothing is shown in parts": _request_with(disclosure_root=b"r" * 32),
    "a short disclosure root": _request_with(disclosure_root=bytes(31)),
    "an opening": _request_with(openings=(b"",)),
    "a consent": _request_with(consents=(b"",)),
    "a sign of life without a stamp": encode_record(msgspec.structs.replace(LIFE, stamp_us=-1)),
    "a sign of life of the year 300000": encode_record(msgspec.structs.replace(LIFE, stamp_us=2**63)),
    "a barrier of epoch 0": encode_record(msgspec.structs.replace(BARRIER, epoch=0)),
    "a barrier above every database's epoch": encode_record(msgspec.structs.replace(BARRIER, epoch=2**63)),
    "a barrier with a short activation id": encode_record(msgspec.structs.replace(BARRIER, activation_id=b"short")),
    "a barrier with a long name": encode_record(msgspec.structs.replace(BARRIER, replica="R" * 256)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_a_bound_is_undecodable(name: str) -> None:
    """Goal: void for everyone, and no other error. Method: one record for each bound of the format."""
    with pytest.raises(Undecodable):
        decode_record(BROKEN[name], 2)


_IN_FORCE = (2, activation(7), 3)
_SIGNED = (b"k" * 32, b"s" * 64)
ACT = ActRecord(*_IN_FORCE, 1_000, "pause", 4, b"body", "operator", "reason", *_SIGNED)
REGISTRATION = RegistrationRecord(*_IN_FORCE, 1_000, PARTY, b"p" * 32, 1, 5, 4, "operator", *_SIGNED)
SALVAGE = SalvageRecord(*_IN_FORCE, 7, 7, b"d" * 32)
GOOD_2 = [LIFE, ACT, REGISTRATION, SALVAGE]


def _of_2(record: Record, **changes: object) -> bytes:
    return encode_record(msgspec.structs.replace(record, **changes))


BROKEN_2 = {
    "an act with an element more": _extended(ACT),
    "a negative period": _of_2(REQUEST, deduplication_us=-1),
    "a period that no column can hold": _of_2(REQUEST, deduplication_us=2**63),
    "an act without a name": _of_2(ACT, name=""),
    "an act with a long name": _of_2(ACT, name="n" * 513),
    "an act of nobody": _of_2(ACT, operator=""),
    "an act without a reason": _of_2(ACT, reason=""),
    "a reason of 514 bytes in 257 characters": _of_2(ACT, reason="é" * 257),
    "a reason with a line end": _of_2(ACT, reason="a\nb"),
    "an operator that turns direction": _of_2(ACT, operator="a\u202eb"),
    "a body of 65,537 bytes": _of_2(ACT, body=bytes(65_537)),
    "a short key of an operator": _of_2(ACT, public_key=b"k" * 31),
    "a negative number of acts": _of_2(ACT, replaces=-1),
    "a registration of nobody": _of_2(REGISTRATION, party=""),
    "a registration by nobody": _of_2(REGISTRATION, operator=""),
    "a registration of a short key": _of_2(REGISTRATION, party_key=b"p" * 31),
    "a registration after a negative number": _of_2(REGISTRATION, before=-1),
    "a registration with a NUL": _of_2(REGISTRATION, operator="a\x00"),
    "a salvage that begins after its end": _of_2(SALVAGE, first_offset=8),
    "a salvage with a short digest": _of_2(SALVAGE, digest=b"d" * 31),
}


@pytest.mark.parametrize("record", [BARRIER, REQUEST, *GOOD_2], ids=lambda record: type(record).__name__)
def test_no_record_is_a_pointer_and_only_requests_of_format_2_are_split(record: Record) -> None:
    """Goal: a record and a pointer are never taken for each other. Method: each kind, and a pointer decoded."""
    value = encode_record(record)
    assert not value.startswith(MAGIC[:1]) and pointer_in(value) is None
    assert may_be_split(value) == (record is REQUEST)
    with pytest.raises(Undecodable):
        decode_record(pointer_to(value, 0, 0), 2)


def test_a_request_whose_bytes_are_a_pointer_is_a_record() -> None:
    """Goal: what a client sends is never followed. Method: canonical bytes that are a pointer."""
    hostile = pointer_to(b"payload", 1, 1)
    value = encode_record(msgspec.structs.replace(REQUEST, request=hostile))
    assert hostile in value and pointer_in(value) is None


@pytest.mark.parametrize("record", [REQUEST, *GOOD_2], ids=lambda record: type(record).__name__)
def test_a_record_is_read_in_the_format_that_it_names_only(record: Record) -> None:
    """Goal: one meaning in one format. Method: each kind, encoded and decoded; then with no format in force, an earlier
    one and a later one."""
    value = encode_record(record)
    assert decode_record(value, 2) == record
    for other in (0, 1, 3):
        with pytest.raises(Undecodable):
            decode_record(value, other)


@pytest.mark.parametrize("name", BROKEN_2)
def test_what_breaks_a_bound_of_format_2_is_undecodable(name: str) -> None:
    """Goal: void for everyone, and no other error. Method: one record for each bound of the format."""
    with pytest.raises(Undecodable):
        decode_record(BROKEN_2[name], 2)


def test_text_of_any_script_is_taken() -> None:
    """Goal: only a fixed list of characters is refused, the same in each Python. Method: letters of several scripts."""
    for text in ("Zürich", "Москва", "東京", "العربية", "\U0001f600", "\U00031350", "a\u00a0b", "x" * 255):
        value = _request_with(submission_id=text)
        decoded = decode_record(value, 2)
        assert isinstance(decoded, RequestRecord)
        assert decoded.submission_id == text


@settings(max_examples=500, deadline=None, derandomize=True)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: encode_record(REQUEST)[:20] + tail))
def test_any_bytes_either_decode_or_are_undecodable(value: bytes) -> None:
    """Goal: poison stops nobody. Method: random bytes, and random endings of a good record."""
    with suppress(Undecodable):
        decode_record(value, 2)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, len(encode_record(REQUEST)) - 1), st.integers(1, 255))
def test_a_changed_byte_is_undecodable_or_another_record(at: int, change: int) -> None:
    """Goal: no two byte strings of one length hold the same record. Method: change one byte of a good one."""
    value = bytearray(encode_record(REQUEST))
    value[at] ^= change
    with suppress(Undecodable):
        assert decode_record(bytes(value), 2) != REQUEST


def test_the_largest_records_fit_the_log() -> None:
    """Goal: RECORD_MAX_BYTES holds for every record that a writer makes. Method: the largest request."""
    refs = [number.to_bytes(36, "big") for number in range(1, 10_000)]
    request = make_request(tx(1), refs, [], None, "p" * 512, ledger_id=LEDGER)
    act_as = tuple(f"{number:0512}" for number in range(16))
    terms = Terms("u" * 255, "c" * 255, act_as)
    largest = _request_with(request=encode_canonical(request, terms), submission_id="s" * 255)
    assert isinstance(decode_record(largest, 2), RequestRecord)
    assert len(largest) < RECORD_MAX_BYTES
