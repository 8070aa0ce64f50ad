"""What canonical bytes keep for a later release: no reader takes a request that has it."""

from __future__ import annotations

import msgspec
import pyarrow as pa
import pytest

from pipeline.judging.columns import BAD_REQUEST, REQUEST, decode
from replica.checker.judge import JudgedRequest, JudgedVoid, ReferenceJudge
from replica.notary.canonical import CONTENT_AT
from replica.notary.errors import BadRequest
from replica.notary.records import NO_OFFSET, RequestRecord, encode_record
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


def log_with(request: bytes) -> list[bytes]:
    """A log whose last record is that of this request; nothing else is wrong with it."""
    maker = begun()
    submission = msgspec.structs.replace(submission_of(request_of(1, (1, 2))), request=request)
    maker.raw(encode_record(RequestRecord(2, maker.activation_id, 40, 5, submission, FOR_EVER, NO_OFFSET)))
    return maker.values


@pytest.mark.parametrize("name", RESERVED)
def test_every_reader_refuses_what_is_reserved(name: str) -> None:
    """Goal: a later release may give it a meaning, as nobody took it before. Method: one thing in an otherwise good
    request: the decoder, the reader, the checker's judge and the slices of jobs; and the good request."""
    with pytest.raises(BadRequest):
        decode_canonical(RESERVED[name])
    for request, counts in ((GOOD, True), (RESERVED[name], False)):
        values = log_with(request)
        last = len(values) - 1
        run = run_product(list(enumerate(values)))
        assert (last in run.verdicts, last in run.voids) == (counts, not counts)
        *_, judged = ReferenceJudge().judge(enumerate(values))
        assert isinstance(judged, JudgedRequest if counts else JudgedVoid)
        columns = decode(0, pa.array(values, pa.binary()))
        assert columns.kind[last] == (REQUEST if counts else BAD_REQUEST)
