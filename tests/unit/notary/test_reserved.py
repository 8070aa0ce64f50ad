"""What canonical bytes and request records keep for a later release: no reader takes a request that has it."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from pipeline.judging.columns import BAD_REQUEST, REQUEST, UNDECODABLE, decode
from replica.checker.judge import JudgedRequest, JudgedVoid, ReferenceJudge
from replica.notary.canonical import CONTENT_AT, encode_request
from replica.notary.errors import BadRequest
from replica.notary.records import encode_record, request_record
from replica.notary.requests import DERIVED
from replica.notary.terms import decode_canonical
from tests.worlds.notary_logs import FOR_EVER, begun, request_of, run_product, submission_of

GOOD = submission_of(request_of(1, (1, 2))).request


def patched(at: int, patch: bytes) -> bytes:
    at %= len(GOOD)
    return GOOD[:at] + patch + GOOD[at + len(patch) :]


RESERVED = {
    "an owner": patched(CONTENT_AT + 4, b"\x00\x01"),
    "a derived id": patched(CONTENT_AT - len(DERIVED), DERIVED),
    "a tear-off": patched(-1, b"\x01"),
}


def signed_for(user: bytes, command: bytes, count: int, *act_as: bytes) -> bytes:
    """Canonical bytes whose texts are these, as if `count` parties acted."""
    head = [len(text).to_bytes(2, "big") + text for text in (user, command)]
    acting = [len(text).to_bytes(2, "big") + text for text in act_as]
    return encode_request(request_of(1, (1, 2))) + b"".join([*head, bytes([count]), *acting]) + bytes(10)


NOT_CANONICAL = {
    "no user": signed_for(b"", b"c", 1, b"P"),
    "a user of 256 bytes": signed_for(b"u" * 256, b"c", 1, b"P"),
    "a user that cannot be printed": signed_for(b"u\n", b"c", 1, b"P"),
    "a user that is not UTF-8": signed_for(b"u\xff", b"c", 1, b"P"),
    "no command": signed_for(b"u", b"", 1, b"P"),
    "a command of 256 bytes": signed_for(b"u", b"c" * 256, 1, b"P"),
    "nobody acts": signed_for(b"u", b"c", 0),
    "one party, where nobody acts": signed_for(b"u", b"c", 0, b"P"),
    "one party, where two act": signed_for(b"u", b"c", 2, b"P"),
    "two parties, where one acts": signed_for(b"u", b"c", 1, b"P", b"Q"),
    "a party that is empty": signed_for(b"u", b"c", 1, b""),
    "a party of 513 bytes": signed_for(b"u", b"c", 1, b"P" * 513),
    "parties out of order": signed_for(b"u", b"c", 2, b"Q", b"P"),
    "a party twice": signed_for(b"u", b"c", 2, b"P", b"P"),
    "17 parties": signed_for(b"u", b"c", 17, *[b"%02d" % number for number in range(17)]),
    "a byte more": signed_for(b"u", b"c", 1, b"P") + b"\0",
    "a text beyond the end": signed_for(b"u", b"c", 1, b"P")[:-11],
}

RESERVED_IN_RECORDS: dict[str, dict[str, Any]] = {
    "a disclosure root": {"disclosure_root": bytes(31) + b"r"},
    "an opening": {"openings": (b"",)},
    "a consent": {"consents": (b"",)},
}


def log_with(request: bytes, **fields: Any) -> list[bytes]:
    """A log whose last record is that of this request, with these fields; nothing else is wrong with it."""
    maker = begun()
    submission = msgspec.structs.replace(submission_of(request_of(1, (1, 2))), request=request)
    record = request_record(2, maker.activation_id, 40, 5, submission, FOR_EVER)
    maker.raw(encode_record(msgspec.structs.replace(record, **fields)))
    return maker.values


@pytest.mark.parametrize("name", RESERVED)
def test_every_reader_refuses_what_is_reserved(name: str) -> None:
    """Goal: a later release may give it a meaning, as nobody took it before. Method: one thing in an otherwise good
    request: the decoder, the reader, the checker's judge and the slices of jobs; and the good request."""
    with pytest.raises(BadRequest):
        decode_canonical(RESERVED[name])
    assert taken_by_all(log_with(GOOD), or_else=BAD_REQUEST)
    assert not taken_by_all(log_with(RESERVED[name]), or_else=BAD_REQUEST)


@pytest.mark.parametrize("name", NOT_CANONICAL)
def test_every_reader_refuses_a_command_that_nobody_can_sign_for(name: str) -> None:
    """Goal: void for all or for none. Method: one bound broken in otherwise good bytes, which all take."""
    assert taken_by_all(log_with(signed_for(b"u", b"c", 1, b"P")), or_else=BAD_REQUEST)
    assert taken_by_all(log_with(signed_for(b"u", b"c", 2, b"P", b"Q")), or_else=BAD_REQUEST)
    assert not taken_by_all(log_with(NOT_CANONICAL[name]), or_else=BAD_REQUEST)


@pytest.mark.parametrize("tail", [b"\x90\xc0", b"\xc0\x90", b"\x90\x00"])
def test_every_reader_refuses_what_is_no_array_after_the_disclosure_root(tail: bytes) -> None:
    """Goal: the same of values of another kind. Method: nothing, and a number, in place of openings or consents."""
    values = log_with(GOOD)
    assert values[-1].endswith(b"\x90\x90")
    values[-1] = values[-1][:-2] + tail
    assert not taken_by_all(values, or_else=UNDECODABLE)


@pytest.mark.parametrize("name", RESERVED_IN_RECORDS)
def test_every_reader_refuses_what_is_reserved_in_a_record(name: str) -> None:
    """Goal: the same of what follows the signature. Method: one thing in the record of a good request."""
    assert not taken_by_all(log_with(GOOD, **RESERVED_IN_RECORDS[name]), or_else=UNDECODABLE)


def taken_by_all(values: list[bytes], *, or_else: int) -> bool:
    """Whether the last record counts, and all readers agree. `or_else`: its kind in slices, if it does not."""
    last = len(values) - 1
    run = run_product(list(enumerate(values)))
    counts = last in run.verdicts
    assert (last in run.voids) is not counts
    *_, judged = ReferenceJudge().judge(enumerate(values))
    assert isinstance(judged, JudgedRequest if counts else JudgedVoid)
    columns = decode(0, pa.array(values, pa.binary()))
    assert columns.kind[last] == (REQUEST if counts else or_else)
    return counts
