"""More decoders under noise: frames of the stream, receipts, manifests, what operators send and write by hand.

See test_api_fuzz for the others. A decoder may raise its one error, and nothing else; what is accepted may be used.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ledger_api.server.submission_session import _decode as decode_frame
from ledger_api.server.validation import Validator
from ledger_api.wire.stream_frames import Submissions, encoder
from pipeline.archive.layout import MANIFEST_NAME
from pipeline.archive.manifest import BadLine, check_lines
from replica.acting.party_file import read_party_file
from replica.link.frames import LookUp, encode_frame
from replica.notary.errors import BadRequest, ConfigError, FormatUnknown
from replica.notary.keys import read_keys
from replica.notary.receipts import (
    Receipt,
    make_receipts,
    receipt_from_document,
    receipt_to_document,
    verify_receipt,
)
from replica.notary.records import Undecodable, decode_record, encode_record, request_record
from replica.operators.admin import PruneCall, SwitchoverCall, read_call
from replica.telemetry.counts import ApiCounts
from tests.unit.api.test_fuzz import EXAMPLES, NESTED, damaged, only
from tests.unit.link.test_frames import FRAME_MAX_BYTES, Collector
from tests.worlds.api_world import NOTARY_KEY, make_submission
from tests.worlds.archive_world import SIGNER, make_archive, some_log
from tests.worlds.beginning import LEDGER

SUBMISSION = make_submission()
FRAME = encoder.encode(Submissions([(7, SUBMISSION)]))
RECORD = encode_record(request_record(2, b"a" * 16, 3, 5, SUBMISSION, 0))
DEEP = b"\x91" * 50_000 + b"\x01"  # MessagePack: a list in a list in a list
KEY = bytes(NOTARY_KEY.verify_key)
GOOD = make_receipts([(bytes([n]) * 32, bytes(32)) for n in range(5)], KEY, lambda m: NOTARY_KEY.sign(m).signature)[3]


def longer(array: bytes) -> bytes:
    """A short MessagePack array with one more element, which nobody asked for and which is nested deep."""
    return bytes([array[0] + 1]) + array[1:] + DEEP


@pytest.fixture(scope="module")
def validator() -> Validator:
    """A validator."""
    return Validator(ApiCounts(), 100, lambda: LEDGER)


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The lines of a good archive's manifest."""
    folder = tmp_path_factory.mktemp("archive")
    make_archive(folder, some_log(25))
    return (folder / MANIFEST_NAME).read_bytes()


@EXAMPLES
@given(st.binary(max_size=200) | damaged(FRAME) | NESTED.map(msgspec.msgpack.encode))
@example(DEEP)
@example(longer(FRAME))
def test_frames_of_the_stream(validator: Validator, raw: bytes) -> None:
    """Goal: no frame ends a front end. Method: noise, damaged frames; what is one is admitted."""
    try:
        frame = decode_frame(raw)
    except BadRequest:
        return
    for _, submission in frame.batch:
        only(BadRequest, validator.read_signed, submission)


@EXAMPLES
@given(damaged(RECORD), st.integers(0, 2))
@example(longer(RECORD), 1)
@example(RECORD[: -len(msgspec.msgpack.encode(SUBMISSION))] + longer(msgspec.msgpack.encode(SUBMISSION)), 1)
def test_request_records(raw: bytes, record_format: int) -> None:
    """Goal: a poison record is void, and stops nobody. Method: a request's record, damaged, and with nested extras."""
    only(Undecodable, lambda value: decode_record(value, record_format), raw)


@EXAMPLES
@given(st.binary(max_size=50))
@example(longer(encode_frame(LookUp([(1, bytes(32))]), FRAME_MAX_BYTES)[4:])[: FRAME_MAX_BYTES - 4])
def test_frames_of_the_link_with_extras(raw: bytes) -> None:
    """Goal: a broken front end cannot bring its core down. Method: nested extras, in frames of the right size."""
    Collector().data_received(len(raw).to_bytes(4, "big") + raw)  # raises nothing: it cuts


@EXAMPLES
@given(
    st.builds(
        Receipt,
        st.binary(max_size=40) | st.just(GOOD.tx_id),
        st.binary(max_size=40) | st.just(GOOD.content_digest),
        st.integers() | st.just(GOOD.leaf_index),
        st.integers() | st.just(GOOD.tree_size),
        st.lists(st.binary(max_size=40) | st.sampled_from(GOOD.path), max_size=40).map(tuple) | st.just(GOOD.path),
        st.just(KEY) | st.binary(max_size=40),
        st.just(GOOD.signature) | st.binary(max_size=80),
        st.just(2) | st.integers(),
    )
)
@example(msgspec.structs.replace(GOOD, tree_size=2**64, leaf_index=2**63))
@example(msgspec.structs.replace(GOOD, path=(b"x" * 32,) * 10_000))
@example(msgspec.structs.replace(GOOD, leaf_index=-1))
def test_only_the_good_receipt_verifies(receipt: Receipt) -> None:
    """Goal: a proof is true or false, never a crash or a hang. Method: every field noise or the good one's."""
    assert verify_receipt(receipt, KEY) is (receipt == GOOD)


@EXAMPLES
@given(damaged(msgspec.json.encode(receipt_to_document(GOOD))))
def test_receipt_files(raw: bytes) -> None:
    """Goal: a file from anywhere is a receipt or is refused. Method: a damaged one; what is read may verify."""
    from replica.notary.receipts import ReceiptDocument

    try:
        document = msgspec.json.decode(raw, type=ReceiptDocument)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return
    try:
        receipt = receipt_from_document(document)
    except BadRequest:
        return
    assert verify_receipt(receipt, KEY) is (receipt == GOOD)


@EXAMPLES
@given(st.data())
def test_manifest_lines(manifest: bytes, data: st.DataObject) -> None:
    """Goal: a damaged archive is reported, with its line. Method: a good manifest, damaged; noise as a line of it."""
    raw = data.draw(damaged(manifest) | st.binary(max_size=100).map(lambda noise: manifest + noise + b"\n"))
    only((BadLine, FormatUnknown), lambda given_bytes: list(check_lines(given_bytes, SIGNER.public_key)), raw)


def test_a_manifest_line_that_is_nested_deep(manifest: bytes) -> None:
    """Goal: no stack is exhausted by a file. Method: a line of a hundred thousand brackets."""
    for line in (b"[" * 100_000, b'{"version":' * 50_000):
        with pytest.raises(BadLine):
            list(check_lines(manifest + line + b"\n", SIGNER.public_key))


@EXAMPLES
@given(st.binary(max_size=200) | NESTED.map(msgspec.json.encode))
@example(b'{"replica":"\xff"}')
@example(b'{"replica":' + b"[" * 4_000)
def test_operators_calls(raw: bytes) -> None:
    """Goal: the admin listener answers whatever is sent. Method: noise, bad UTF-8, JSON of every shape."""
    for kind in (SwitchoverCall, PruneCall):
        only(BadRequest, lambda body, kind=kind: read_call(kind, body), raw)


@EXAMPLES
@given(st.text(max_size=200) | st.text(max_size=60).map(lambda text: f"[parties]\n{text}"))
def test_files_that_people_write(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Goal: a typing mistake is reported, and stops nothing that runs. Method: noise as a party file and as keys."""
    path = tmp_path_factory.mktemp("noise") / "file.toml"
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    for read in (read_party_file, read_keys):
        only(ConfigError, read, path)
