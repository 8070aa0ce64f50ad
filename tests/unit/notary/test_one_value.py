"""JSON in which a key is given twice: refused wherever it comes in, and cheaply detected."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_api.wire.repeated_keys import check_batch, check_submission
from ledger_api.wire.submissions import BatchDocument, SubmissionDocument
from replica.notary import one_value
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.one_value import check_keys
from replica.operators.admin import SwitchoverCall, read_call

STATE = "7547ffaca5f21a3a9bbe8eac380a98fda5bbd58cdbe5774c1fbb4ad4255112d6:1"
REQUEST = {
    "ledger_id": "4d" * 16,
    "tx_id": "a8" * 32,
    "inputs": [STATE, STATE],
    "references": [STATE],
    "time_window": {"from": "2000-01-01T00:00:00Z", "until": "2100-01-01T00:00:00+01:00"},
    "party": "O=A:B,C=GB",
    "public_key": "86" * 32,
    "signature": "4c" * 64,
}
WHOLE = {
    "request": REQUEST,
    "command_id": "a:b",
    "user_id": "u:",
    "act_as": ["O=A:B,C=GB", "::"],
    "submission_id": ":",
    "deduplication": {"duration_s": 5.0, "after_offset": 0},
}
LEAST = {
    "request": {name: REQUEST[name] for name in ("ledger_id", "tx_id", "inputs", "party", "public_key", "signature")}
}


def document_of(raw: bytes) -> SubmissionDocument:
    return msgspec.json.decode(raw, type=SubmissionDocument)


def texts_with_one_key_twice(value: Any, whole: bytes, *, colon: str = ":") -> list[bytes]:
    """The document once for each of its keys, which is there twice, the first time with another value of its kind."""
    found = []
    for name, part in [] if not isinstance(value, dict) else value.items():
        here = json.dumps(value, separators=(",", colon)).encode()
        assert whole.count(here) == 1
        for first in (part, "x\\u003ay" if isinstance(part, str) else part, ":::" if isinstance(part, str) else part):
            text = json.dumps(first) if first is part else f'"{first}"'
            found.append(whole.replace(here, b"{" + f'"{name}"{colon}{text},'.encode() + here[1:]))
        found += texts_with_one_key_twice(part, whole, colon=colon)
    return found


@pytest.mark.parametrize("colon", [":", " : ", "\n:"])
@pytest.mark.parametrize("document", [WHOLE, LEAST], ids=["whole", "least"])
def test_every_key_that_is_given_twice_is_found(document: dict[str, Any], colon: str) -> None:
    """Goal: at any depth, whatever the spaces and the values. Method: each key again, with three values."""
    whole = json.dumps(document, separators=(",", colon)).encode()
    check_submission(whole, document_of(whole))
    texts = texts_with_one_key_twice(document, whole, colon=colon)
    assert len(texts) >= 18
    for raw in texts:
        try:
            read = document_of(raw)
        except msgspec.DecodeError:
            continue  # refused for the value before
        with pytest.raises(BadRequest, match="is given twice") as caught:
            check_submission(raw, read)
        assert caught.value.code is Code.MALFORMED_JSON


def test_what_is_usual_is_not_read_a_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the check costs a count. Method: documents as clients write them; reading again is an error."""
    compact = [json.dumps(document, separators=(",", ":")) for document in (LEAST, {**LEAST, "command_id": "c"})]
    window = {**REQUEST, "references": [], "time_window": {"until": "2100-01-01T00:00:00Z"}}
    del window["references"]
    spaced = json.dumps({"request": window, "act_as": ["O=A:B,C=GB"]}, indent=2)
    batch = [f'{{"submissions":[{",".join(compact)}]}}', f' {{ "submissions" : [ {" , ".join(compact)} ] }}\n']

    def forbidden(raw: bytes) -> None:
        raise AssertionError(raw)

    monkeypatch.setattr(one_value, "check_keys", forbidden)
    for text in (*compact, spaced):
        check_submission(text.encode(), document_of(text.encode()))
    for text in batch:
        check_batch(text.encode(), msgspec.json.decode(text, type=BatchDocument).submissions)


def test_a_batch_has_one_list() -> None:
    """Goal: nothing hides in a list that is not judged. Method: two lists, with and without escapes, also alike."""
    one, two = ('{"request":1}', '{"request":2}')
    for first, second, name in itertools.product((one, two, ""), (one, two), ("submissions", "submi\\u0073sions")):
        raw = f'{{"{name}":[{first}],"submissions":[{second}]}}'.encode()
        with pytest.raises(BadRequest, match="is given twice"):
            check_batch(raw, msgspec.json.decode(raw, type=BatchDocument).submissions)


def test_a_batch_is_not_read_again_whatever_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody's batch holds others up: a million small objects took a second. Method: escapes in the one key, and
    spaces; reading again is an error."""

    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(one_value.json, "loads", forbidden)
    for name, end in itertools.product(("submissions", "submi\\u0073sions"), ("]}", " ] } \n", "\t]\r\n}")):
        for inside in ("", "[{},{}]", '1 , "]}" ,{"a":[]}', '"\\"" , null'):
            raw = f' {{ "{name}" : [ {inside}{end}'.encode()
            check_batch(raw, msgspec.json.decode(raw, type=BatchDocument).submissions)


@given(st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_what_has_each_key_once_passes(value: Any) -> None:
    """Goal: no false alarm. Method: any document of Python's own."""
    check_keys(json.dumps(value).encode())


def test_what_is_no_json_is_left_to_its_reader() -> None:
    """Goal: no error of Python's. Method: nesting, noise, half a document."""
    for raw in (b"[" * 100_000, b"\xff\xfe", b'{"a":', b""):
        check_keys(raw)


def test_admin_calls_have_each_key_once() -> None:
    """Goal: operators get the error as well. Method: a call with a key twice."""
    with pytest.raises(BadRequest, match="is given twice"):
        read_call(SwitchoverCall, b'{"to":"r1","to":"r2"}')
