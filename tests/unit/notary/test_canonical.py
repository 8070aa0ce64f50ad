"""Canonical bytes: one encoding for each request, and nothing else decodes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replica.notary import canonical
from replica.notary.canonical import (
    CONTENT_AT,
    REFS_AT,
    change_id,
    content_digest,
    decode_request,
    encode_request,
    summarise,
)
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.requests import STATES_LIMIT, TIME_MAX_US, Request, TimeWindow, make_request
from tests.worlds.beginning import LEDGER
from tests.worlds.notary_logs import PARTY, request_of, state, tx

_TWO = request_of(1, (1, 2))


@st.composite
def any_request(draw: st.DrawFn) -> Request:
    """Any request that the format allows, of moderate size."""
    refs = draw(st.lists(st.binary(min_size=36, max_size=36), unique=True, max_size=6))
    cut = draw(st.integers(0, len(refs)))
    start, end = sorted(draw(st.tuples(st.integers(0, TIME_MAX_US - 1), st.integers(0, TIME_MAX_US - 1))))
    window = draw(
        st.sampled_from([None, TimeWindow(start, None), TimeWindow(None, end), TimeWindow(start, end + 1)]),
    )
    party = draw(st.text(st.characters(blacklist_categories=("C", "Z")), min_size=1, max_size=40))
    return make_request(
        draw(st.binary(min_size=32, max_size=32)), refs[:cut], refs[cut:], window, party, ledger_id=LEDGER
    )


@settings(max_examples=300, deadline=None, derandomize=True)
@given(any_request())
def test_a_request_survives_its_bytes(request: Request) -> None:
    """Goal: encode and decode are inverse, and agree on digest and id. Method: any request."""
    raw = encode_request(request)
    decoded, digest = decode_request(raw)
    assert decoded == request
    assert encode_request(decoded) == raw
    assert digest == content_digest(request) == sha256(b"notary/content/2" + raw[64 : -2 - len(_party(raw))]).digest()
    assert summarise(raw) == (request.tx_id, digest, request.state_count)


def _party(raw: bytes) -> bytes:
    return decode_request(raw)[0].party.encode()


@settings(max_examples=500, deadline=None, derandomize=True)
@given(any_request(), st.data())
def test_changed_bytes_are_refused_or_another_request(request: Request, data: st.DataObject) -> None:
    """Goal: one encoding per request. Method: change, cut or add a byte; whatever decodes must encode to itself."""
    raw = bytearray(encode_request(request))
    at = data.draw(st.integers(0, len(raw) - 1))
    match data.draw(st.sampled_from(["change", "cut", "add"])):
        case "change":
            raw[at] ^= data.draw(st.integers(1, 255))
        case "cut":
            del raw[at:]
        case "add":
            raw.insert(at, data.draw(st.integers(0, 255)))
    with suppress(BadRequest):
        decoded, _ = decode_request(bytes(raw))
        assert encode_request(decoded) == bytes(raw)
        assert decoded != request or bytes(raw) == encode_request(request)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.binary(max_size=200) | st.binary(max_size=80).map(lambda tail: encode_request(request_of(1, (1,)))[:60] + tail)
)
def test_any_bytes_either_decode_or_are_refused(raw: bytes) -> None:
    """Goal: readers of the log meet no other error. Method: random bytes and random endings."""
    with suppress(BadRequest):
        decode_request(raw)


@st.composite
def near_plain_bytes(draw: st.DrawFn) -> bytes:
    """Bytes of a request without references and window, or nearly so: one field may be wrong, or the order."""
    refs = sorted(draw(st.lists(st.binary(min_size=36, max_size=36), unique=True, max_size=18)))
    if draw(st.booleans()) and len(refs) > 1:
        at = draw(st.integers(1, len(refs) - 1))
        refs[at - 1], refs[at] = draw(st.sampled_from([(refs[at], refs[at - 1]), (refs[at], refs[at])]))
    party = draw(
        st.sampled_from(
            [PARTY.encode(), b"O=\xc3\x9cber", b"", b"\xff", b"a\nb", b"p" * 512, b"p" * 513, b"p" * 70_000]
        )
    )
    counts = draw(st.sampled_from([(len(refs), 0)] * 6 + [(len(refs) + 1, 0), (len(refs) + 256, 0), (len(refs), 1)]))
    tag = draw(st.sampled_from([b"notary/request/3"] * 6 + [b"notary/request/2"]))
    window = draw(st.sampled_from([bytes(17)] * 6 + [b"\1" + bytes(16), bytes(16) + b"\1", b"\2" + bytes(15) + b"\1"]))
    size = min(len(party), 2**16 - 1) + draw(st.sampled_from([0] * 6 + [-1, 1]))
    length = max(0, min(size, 2**16 - 1)).to_bytes(2, "big")
    head = tag + draw(st.binary(min_size=32, max_size=32)) + b"".join(count.to_bytes(2, "big") for count in counts)
    raw = head + b"".join(refs) + window + length + party
    return raw[: draw(st.sampled_from([len(raw)] * 6 + [len(raw) - 1, 50, 0]))]


@pytest.mark.thorough
@settings(max_examples=1_500, deadline=None, derandomize=True)
@given(near_plain_bytes())
def test_the_short_way_for_usual_requests_decides_as_the_long_way(raw: bytes) -> None:
    """Goal: readers agree on what is void, whichever way they take. Method: result or reason, for usual bytes and for
    bytes that are wrong in one place."""

    def outcome(decode: Callable[[bytes], tuple[Request, bytes]]) -> object:
        try:
            return decode(raw)
        except BadRequest as error:
            return error.code, error.detail

    assert outcome(decode_request) == outcome(canonical._decode_any)


def test_usual_requests_take_the_short_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the comparison of both ways compares something. Method: the long way is not called."""
    monkeypatch.setattr(canonical, "_decode_any", lambda _: pytest.fail("the long way"))
    for inputs in ((), (1,), tuple(range(16))):
        request = request_of(1, inputs)
        assert decode_request(encode_request(request))[0] == request


def _patched(request: Request, at: int, patch: bytes) -> bytes:
    raw = encode_request(request)
    return raw[:at] + patch + raw[at + len(patch) :]


_LOW, _HIGH = sorted((state(1), state(2)))
_WINDOW_AT = REFS_AT + 72


@pytest.mark.parametrize(
    "raw",
    [
        _patched(_TWO, 0, b"notary/receipt/1"),
        _patched(_TWO, REFS_AT, _HIGH + _LOW),
        _patched(_TWO, REFS_AT, _LOW + _LOW),
        _patched(request_of(1, (1,), (2,)), REFS_AT, state(1) + state(1)),
        _patched(_TWO, CONTENT_AT, b"\x00\x03"),
        _patched(_TWO, CONTENT_AT + 4, b"\x00\x01"),
        _patched(_TWO, _WINDOW_AT, b"\x04"),
        _patched(_TWO, _WINDOW_AT, b"\x00" + (5).to_bytes(8, "big")),
        _patched(_TWO, _WINDOW_AT, b"\x01" + bytes(8) + (5).to_bytes(8, "big")),
        _patched(_TWO, _WINDOW_AT, b"\x02" + (5).to_bytes(8, "big") + bytes(8)),
        _patched(_TWO, _WINDOW_AT, b"\x03" + (5).to_bytes(8, "big") + (5).to_bytes(8, "big")),
        _patched(_TWO, _WINDOW_AT, b"\x01" + (2**63).to_bytes(8, "big")),
        _patched(_TWO, _WINDOW_AT + 17, b"\x00\x00"),
        _patched(_TWO, _WINDOW_AT + 19, b"\xff"),
        _patched(_TWO, _WINDOW_AT + 19, b"\x00"),
    ],
)
def test_bytes_that_are_not_canonical_are_refused(raw: bytes) -> None:
    """Goal: each rule of the layout is enforced. Method: break one at a time."""
    with pytest.raises(BadRequest):
        decode_request(raw)


def test_the_number_of_states_stays_below_the_limit() -> None:
    """Goal: 9,999 pass, 10,000 do not, from parts and from bytes. Method: on both sides of the limit."""
    refs = [number.to_bytes(36, "big") for number in range(1, STATES_LIMIT + 1)]
    largest = make_request(tx(1), refs[:6_000], refs[6_000:-1], None, PARTY, ledger_id=LEDGER)
    assert decode_request(encode_request(largest))[0] == largest
    with pytest.raises(BadRequest) as caught:
        make_request(tx(1), refs[:6_000], refs[6_000:], None, PARTY, ledger_id=LEDGER)
    assert caught.value.code is Code.TOO_MANY_STATES
    with pytest.raises(BadRequest):
        decode_request(encode_request(Request(LEDGER, tx(1), tuple(refs), (), None, PARTY)))


def test_the_content_digest_covers_inputs_references_and_window_and_nothing_else() -> None:
    """Goal: what an id stands for. Method: change each part."""
    window = TimeWindow(1, 2)
    base = make_request(tx(1), [state(1)], [state(2)], window, PARTY, ledger_id=LEDGER)
    digest = content_digest(base)
    assert content_digest(make_request(tx(2), [state(1)], [state(2)], window, "O=Other", ledger_id=LEDGER)) == digest
    others = [
        make_request(tx(1), [state(2)], [state(1)], window, PARTY, ledger_id=LEDGER),
        make_request(tx(1), [state(1), state(2)], [], window, PARTY, ledger_id=LEDGER),
        make_request(tx(1), [state(1)], [], window, PARTY, ledger_id=LEDGER),
        make_request(tx(1), [state(1)], [state(2)], None, PARTY, ledger_id=LEDGER),
        make_request(tx(1), [state(1)], [state(2)], TimeWindow(1, 3), PARTY, ledger_id=LEDGER),
        make_request(tx(1), [state(1)], [state(2)], TimeWindow(1, None), PARTY, ledger_id=LEDGER),
        make_request(tx(1), [state(1)], [state(2)], TimeWindow(0, None), PARTY, ledger_id=LEDGER),
        make_request(tx(1), [state(1)], [state(2)], TimeWindow(None, 2), PARTY, ledger_id=LEDGER),
    ]
    assert len({digest, *(content_digest(other) for other in others)}) == len(others) + 1


def test_a_change_id_names_user_command_and_parties_in_any_order() -> None:
    """Goal: commands are distinguished, and no text can run into the next. Method: near misses."""
    base = change_id("user", "command", ("a", "b"))
    assert change_id("user", "command", ("b", "a")) == base
    others = [
        change_id("usercommand", "", ("a", "b")),
        change_id("user", "command", ("ab",)),
        change_id("user", "command", ("a", "b", "")),
        change_id("user", "commanda", ("b",)),
        change_id("user2", "command", ("a", "b")),
        change_id("user", "command2", ("a", "b")),
    ]
    assert len({base, *others}) == len(others) + 1
