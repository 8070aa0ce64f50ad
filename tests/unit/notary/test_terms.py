"""Canonical bytes: exactly one encoding, and a record with other terms than those signed for is void."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.checker.judge import JudgedRequest, JudgedVoid, ReferenceJudge
from replica.notary.canonical import change_id, decode_request, encode_request
from replica.notary.errors import BadRequest
from replica.notary.records import encode_record, request_record
from replica.notary.requests import ACT_AS_MAX, Request
from replica.notary.terms import FOR_EVER_US, Terms, decode_canonical, encode_canonical
from tests.worlds.notary_logs import PARTY, begun, request_of, requests, run_product, submission_of

OTHER = "O=Bank B,L=Paris,C=FR"
REQUEST = request_of(1, (1, 2), (3,))
TERMS = Terms("user", "c", (PARTY,), 60)
OTHER_TAG = b"notary/request/2" + encode_canonical(REQUEST, TERMS)[16:]
VECTORS = json.loads((Path(__file__).parents[2] / "golden/vectors/canonical_terms.json").read_text())

_numbers = st.integers(0, 2**63 - 1)
_texts = st.sampled_from(["a", "user", "Zürich", "x" * 255])
_act_as = st.sampled_from([(PARTY,), (PARTY, OTHER), ("A", "a", "Ü")])
terms = st.builds(Terms, _texts, _texts, _act_as) | st.builds(Terms, _texts, _texts, _act_as, _numbers)
terms |= st.builds(Terms, _texts, _texts, _act_as, st.none(), _numbers)


@settings(deadline=None, max_examples=300, derandomize=True)
@given(requests(), terms)
def test_what_was_encoded_is_decoded_and_has_the_content_digest_of_the_request(request: Request, terms: Terms) -> None:
    """Goal: one request, one content. Method: random requests and terms."""
    decoded, digest, found, _ = decode_canonical(encode_canonical(request, terms))
    assert (decoded, found) == (request, terms)
    assert digest == decode_request(encode_request(request))[1]


@settings(deadline=None, max_examples=500, derandomize=True)
@given(requests(), terms, st.data())
def test_changed_bytes_are_refused_or_mean_something_else(request: Request, terms: Terms, data: st.DataObject) -> None:
    """Goal: exactly one encoding, and no other error. Method: a byte changed, put in or taken out, anywhere."""
    raw = encode_canonical(request, terms)
    at = data.draw(st.integers(0, len(raw) - 1))
    byte = bytes([raw[at] ^ data.draw(st.integers(1, 255))])
    changed = data.draw(
        st.sampled_from([raw[:at] + byte + raw[at + 1 :], raw[:at] + byte + raw[at:], raw[:at] + raw[at + 1 :]])
    )
    try:
        decoded, _, found, _ = decode_canonical(changed)
    except BadRequest:
        return
    assert encode_canonical(decoded, found) == changed
    assert changed == raw or (decoded, found) != (request, terms)


@pytest.mark.parametrize(
    "broken",
    [
        msgspec.structs.replace(TERMS, user_id=""),
        msgspec.structs.replace(TERMS, command_id="x" * 256),
        msgspec.structs.replace(TERMS, command_id="a\nb"),
        msgspec.structs.replace(TERMS, act_as=()),
        msgspec.structs.replace(TERMS, act_as=(PARTY, PARTY)),
        msgspec.structs.replace(TERMS, act_as=(OTHER, PARTY)),
        msgspec.structs.replace(TERMS, act_as=tuple(f"O={n:02}" for n in range(ACT_AS_MAX + 1))),
        msgspec.structs.replace(TERMS, deduplication_us=2**63),
    ],
)
def test_terms_out_of_bounds_are_refused(broken: Terms) -> None:
    """Goal: the bounds of a command hold in what is signed. Method: one term for each bound."""
    with pytest.raises(BadRequest):
        decode_canonical(encode_canonical(REQUEST, broken))


@pytest.mark.parametrize("tail", [(0, 1), (3, 0), (255, 0), (1, 2**63), (2, 2**63)])
def test_a_deduplication_that_nobody_writes_is_refused(tail: tuple[int, int]) -> None:
    """Goal: exactly one encoding. Method: a value without a kind, unknown kinds, values that are too high."""
    kind, value = tail
    raw = encode_canonical(REQUEST, TERMS)[:-10] + bytes([kind]) + value.to_bytes(8, "big") + b"\0"
    with pytest.raises(BadRequest):
        decode_canonical(raw)


_NONE, _OFFSET = Terms("user", "c", (PARTY,)), Terms("user", "c", (PARTY,), None, 8)


@pytest.mark.parametrize(
    ("signed", "period_us", "counts"),
    [
        (TERMS, 60, True),
        (TERMS, 61, False),
        (_NONE, 7, True),
        (_OFFSET, FOR_EVER_US, True),
        (_OFFSET, 60, False),
    ],
)
def test_a_record_has_the_terms_that_were_signed_for(signed: Terms, period_us: int, counts: bool) -> None:
    """Goal: nobody who relays a request changes its terms. Method: product and reference judge."""
    maker = begun()
    maker.submit(REQUEST, command="c", deduplication_us=period_us, terms=signed)
    run = run_product(maker.log)
    assert run.voids == ({} if counts else {3: "undecodable"})
    judged = list(ReferenceJudge().judge(maker.log))[3]
    assert isinstance(judged, JudgedRequest if counts else JudgedVoid)


@pytest.mark.parametrize("raw", [encode_request(REQUEST), OTHER_TAG])
def test_bytes_without_a_command_are_no_canonical_bytes(raw: bytes) -> None:
    """Goal: no signature leaves its command open. Method: the request alone, and another tag before the rest; product
    and reference judge."""
    with pytest.raises(BadRequest):
        decode_canonical(raw)
    maker = begun()
    sent = msgspec.structs.replace(submission_of(REQUEST), request=raw)
    maker.raw(encode_record(request_record(2, maker.activation_id, 1, 1_000, sent, 60)))
    assert run_product(maker.log).voids == {3: "undecodable"}
    assert isinstance(list(ReferenceJudge().judge(maker.log))[3], JudgedVoid)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["name"]))
def test_the_vectors_hold(vector: dict[str, object]) -> None:
    """Goal: other languages can write it. Method: each vector, decoded and encoded."""
    raw = bytes.fromhex(str(vector["canonical"]))
    request, digest, found, change = decode_canonical(raw)
    assert change == change_id(found.user_id, found.command_id, found.act_as)
    assert found == msgspec.convert(vector["terms"], Terms)
    assert encode_request(request) == raw[: len(encode_request(request))]
    assert digest.hex() == vector["content_digest"]
    assert encode_canonical(request, found) == raw
