"""Decoders under noise: whatever comes in ends, quickly, in the one error that the decoder may raise."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from aiohttp.test_utils import make_mocked_request
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ledger_api.server.query_string import QueryString
from ledger_api.server.routes import RouteTable
from ledger_api.server.settings import TokenSettings
from ledger_api.server.tokens import TokenRefused, check_token, parse_keys, token_in
from ledger_api.server.validation import Validator
from ledger_api.wire.submissions import submission_to_document
from replica.link.frames import LookUp, encode_frame
from replica.notary.errors import BadRequest, ConfigError
from replica.notary.granters import Database
from replica.notary.receipts import ReceiptDocument, receipt_from_document
from replica.notary.records import BarrierRecord, Undecodable, decode_record, encode_record
from replica.notary.terms import decode_canonical
from replica.telemetry.counts import ApiCounts
from tests.tokens import AUDIENCE, NOW_S, Issuer
from tests.unit.link.test_frames import FRAME_MAX_BYTES, Collector
from tests.worlds.api_world import make_submission
from tests.worlds.beginning import LEDGER

EXAMPLES = settings(max_examples=300, deadline=2_000)
ISSUER = Issuer()
KEYS = parse_keys(ISSUER.jwks(), "test")
TOKENS = TokenSettings(keys_file=Path("unused"), audience=AUDIENCE)
SUBMISSION = make_submission()
JSON = msgspec.json.encode(submission_to_document(SUBMISSION))
BARRIER = encode_record(BarrierRecord(1, b"a" * 16, "r1", Database("postgres", "1", 1), 2, 3))
NESTED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=20,
)


def damaged(good: bytes) -> st.SearchStrategy[bytes]:
    """Something that was right once: a byte changed, a part cut out, noise put in."""
    place = st.integers(0, len(good))
    return st.builds(
        lambda a, b, noise: good[: min(a, b)] + noise + good[max(a, b) :], place, place, st.binary(max_size=9)
    )


@pytest.fixture(scope="module")
def validator() -> Validator:
    """A validator."""
    return Validator(ApiCounts(), 100, lambda: LEDGER)


@EXAMPLES
@given(st.binary(max_size=200) | damaged(JSON) | NESTED.map(msgspec.json.encode))
@example(b"[" * 100_000)
@example(b'{"request":' * 50_000)
def test_json_requests(validator: Validator, raw: bytes) -> None:
    """Goal: no crash, no hang in what reads a body. Method: noise, damaged submissions, other JSON, deep nesting."""
    for read in (validator.read, validator.split):
        only(BadRequest, read, raw)


@EXAMPLES
@given(st.binary(max_size=200) | damaged(SUBMISSION.request))
def test_canonical_bytes(raw: bytes) -> None:
    """Goal: canonical bytes are read or refused. Method: noise, and a damaged request."""
    only(BadRequest, decode_canonical, raw)


@EXAMPLES
@given(st.binary(max_size=200) | damaged(BARRIER) | NESTED.map(msgspec.msgpack.encode), st.integers(0, 3))
@example(b"\x91" * 100_000, 1)
def test_log_records(raw: bytes, record_format: int) -> None:
    """Goal: a poison record is void, and stops nobody. Method: noise, a damaged barrier, other MessagePack, nesting."""
    only(Undecodable, lambda value: decode_record(value, record_format), raw)


@EXAMPLES
@given(st.binary(max_size=200) | damaged(encode_frame(LookUp([(1, bytes(32))]), FRAME_MAX_BYTES)))
@example((5_000).to_bytes(4, "big") + b"\x91" * 5_000)
def test_link_frames(raw: bytes) -> None:
    """Goal: a broken front end cannot bring its core down. Method: noise and damaged frames; the connection is cut."""
    Collector().data_received(raw)  # raises nothing: it cuts


@EXAMPLES
@given(st.text(max_size=200) | damaged(ISSUER.token().encode()).map(lambda raw: raw.decode("latin-1")))
@example("." * 1_000)
@example("=.=.=")
def test_tokens(text: str) -> None:
    """Goal: a token is accepted or refused. Method: noise, and a damaged token; one that is whole may pass."""
    only(BadRequest, token_in, text)
    if text != ISSUER.token():
        only(TokenRefused, lambda token: check_token(token, KEYS, TOKENS, NOW_S), text)


@EXAMPLES
@given(st.dictionaries(st.sampled_from(["alg", "kid", "crit", "b64", "zip", "jwk", "typ", "enc"]), NESTED))
@example({"crit": 5})
@example({"alg": {}})
def test_headers_of_tokens(header: dict[str, object]) -> None:
    """Goal: who has no key cannot cause an error of ours. Method: a token whose header has values of every kind."""
    for known in ({}, {"alg": "EdDSA", "kid": "k1"}):
        parts = (msgspec.json.encode(known | header), b"{}", b"no")
        token = ".".join([base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts])
        only(TokenRefused, lambda text: check_token(text, KEYS, TOKENS, NOW_S), token)


@EXAMPLES
@given(st.text(max_size=200) | NESTED.map(lambda value: msgspec.json.encode(value).decode()))
def test_key_sets(text: str) -> None:
    """Goal: what an issuer publishes cannot stop a front end. Method: noise, and JSON that is no key set."""
    only(ConfigError, lambda given_text: parse_keys(given_text, "test"), text)
    only(ConfigError, lambda given_text: parse_keys('{"keys": [' + given_text + "]}", "test"), text)


@EXAMPLES
@given(
    st.builds(
        ReceiptDocument, st.text(), st.text(), st.integers(), st.integers(), st.lists(st.text()), st.text(), st.text()
    )
)
def test_proofs(document: ReceiptDocument) -> None:
    """Goal: a receipt from anywhere is read or refused. Method: texts and numbers of every kind."""
    only(BadRequest, receipt_from_document, document)


@EXAMPLES
@given(st.text(max_size=100))
def test_queries_and_paths(text: str) -> None:
    """Goal: no URL ends in a 500. Method: noise as query and as path."""
    only(BadRequest, lambda query: QueryString(query, ("after",)).number("after", 0), text)
    try:
        request = make_mocked_request("GET", text)
    except ValueError:  # no URL: the parser of requests refuses it
        return
    assert asyncio.run(RouteTable([]).find(request)) is None


def only(
    allowed: type[Exception] | tuple[type[Exception], ...], read: Callable[[object], object], value: object
) -> None:
    """Read, and let nothing through but the error that is allowed."""
    with suppress(allowed):
        read(value)
