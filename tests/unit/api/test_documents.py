"""The JSON documents: what goes out comes back the same, for whatever may stand in it."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger_api.client import Party, encode_batch, encode_submission
from ledger_api.wire.answers import NotarisedDocument, answer_from_document, answer_to_document
from ledger_api.wire.problems import ProblemDocument
from ledger_api.wire.submissions import (
    BatchDocument,
    SubmissionDocument,
    submission_from_document,
    submission_to_document,
)
from replica.notary.answers import Answer, Notarised, NotNow, Refused
from replica.notary.codes import Code
from replica.notary.errors import BadRequest
from replica.notary.receipts import Receipt
from replica.notary.requests import Submission, TimeWindow
from replica.notary.rules import Conflict, Usage
from replica.notary.texts import format_time, parse_time
from tests.worlds.api_world import BANK
from tests.worlds.beginning import LEDGER

YEAR_9999_US = 253_402_300_799_999_999
ids = st.binary(min_size=32, max_size=32)
refs = st.binary(min_size=36, max_size=36)
times = st.integers(0, YEAR_9999_US)
texts = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=60)
offsets = st.integers(0, 2**63 - 1)
retries = st.floats(0, 1e6)
keys_by_retry = {
    retry: [code.name for code in Code if code.status and code.retry.value == retry] for retry in ("no", "same")
}


@st.composite
def windows(draw: st.DrawFn) -> TimeWindow | None:
    ends = sorted(draw(st.lists(times, min_size=2, max_size=2, unique=True)))
    return draw(st.sampled_from([None, TimeWindow(ends[0]), TimeWindow(None, ends[1]), TimeWindow(ends[0], ends[1])]))


@st.composite
def submissions(draw: st.DrawFn) -> Submission:
    states = draw(st.lists(refs, max_size=12, unique=True))
    border = draw(st.integers(0, len(states)))
    return BANK.sign(
        draw(ids),
        states[:border],
        states[border:],
        draw(windows()),
        command_id=draw(texts),
        user_id=draw(texts),
        act_as=draw(st.lists(texts, min_size=1, max_size=16, unique=True)),
        submission_id=draw(texts),
    )


receipts = st.builds(
    Receipt,
    ids,
    ids,
    st.integers(0, 2**32 - 1),
    st.integers(1, 2**32 - 1),
    st.lists(ids, max_size=32).map(tuple),
    ids,
    st.binary(min_size=64, max_size=64),
    st.just(2),
)
conflicts = st.builds(Conflict, refs, ids, st.sampled_from(Usage))
answers: st.SearchStrategy[Answer] = st.one_of(
    st.builds(Notarised, ids, ids, offsets, st.none() | offsets, st.booleans(), receipts),
    st.builds(
        Refused,
        st.sampled_from(keys_by_retry["no"]),
        ids,
        st.none() | offsets,
        st.lists(conflicts, max_size=4).map(tuple),
        st.none() | times,
    ),
    st.builds(NotNow, st.sampled_from(keys_by_retry["same"]), st.text(max_size=50), retries),
)


def no_new_id() -> str:
    raise AssertionError("every id is spelt out")


@given(submissions())
def test_a_submission_survives_its_json(submission: Submission) -> None:
    """Goal: what a client signs is what the server takes. Method: any submission through its JSON bytes and back."""
    document = msgspec.json.decode(encode_submission(submission), type=SubmissionDocument)
    assert submission_from_document(document, no_new_id) == submission


@given(st.lists(submissions(), min_size=1, max_size=4))
def test_a_batch_survives_its_json(batch: list[Submission]) -> None:
    """Goal: the same for batches. Method: any batch through its JSON bytes and back."""
    raws = msgspec.json.decode(encode_batch(batch), type=BatchDocument).submissions
    documents = [msgspec.json.decode(raw, type=SubmissionDocument) for raw in raws]
    assert [submission_from_document(document, no_new_id) for document in documents] == batch


@given(answers)
def test_an_answer_survives_its_json(answer: Answer) -> None:
    """Goal: a client reads what the notary answered. Method: any answer through its JSON bytes and back."""
    raw = msgspec.json.encode(answer_to_document(answer, "id-1"))
    kind = NotarisedDocument if isinstance(answer, Notarised) else ProblemDocument
    assert json.loads(raw)["status"] == (200 if isinstance(answer, Notarised) else Code[answer.code].status)
    assert answer_from_document(msgspec.json.decode(raw, type=kind)) == answer


@given(times)
def test_times_are_exact_to_the_microsecond(time_us: int) -> None:
    """Goal: a signed window and its JSON are the same window. Method: any time of RFC 3339 there and back."""
    assert parse_time(format_time(time_us)) == time_us


def test_times_that_rfc_3339_cannot_say() -> None:
    """Goal: a refusal, not a wrong time. Method: the first microsecond of the year 10000, and texts."""
    with pytest.raises(BadRequest):
        format_time(YEAR_9999_US + 1)
    with pytest.raises(BadRequest):
        submission_to_document(BANK.sign(bytes(32), window=TimeWindow(None, YEAR_9999_US + 1)))
    for text in ("", "yesterday", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z", "2026-01-01T23:59:60Z"):
        with pytest.raises(BadRequest):
            parse_time(text)
    assert parse_time("2026-01-01T02:00:00.5+02:00") == parse_time("2026-01-01T00:00:00.500000Z")


def test_a_window_that_json_cannot_say_is_told_without_that_end() -> None:
    """Goal: an answer can be rendered, whatever window it repeats. Method: ends beyond the year 9999, which an offset
    reaches without leaving RFC 3339; the whole batch of such a submission was answered 400."""
    beyond = parse_time("9999-12-31T23:59:59-23:59")
    for window, told in (
        (TimeWindow(beyond), None),
        (TimeWindow(5, beyond), TimeWindow(5)),
        (TimeWindow(YEAR_9999_US, beyond), TimeWindow(YEAR_9999_US)),
    ):
        answer = Refused(Code.TIME_WINDOW_CLOSED.name, bytes(32), 1, judged_us=9, window=window)
        document = answer_to_document(answer)
        assert isinstance(document, ProblemDocument)
        assert answer_from_document(document) == msgspec.structs.replace(answer, window=told)


def test_a_problem_before_the_notary_stays_a_problem() -> None:
    """Goal: a client sees that its request never got there. Method: problems without a transaction."""
    document = ProblemDocument(
        type="urn:notary:problem:SIGNATURE_INVALID",
        title="t",
        status=401,
        detail="d",
        code="SIGNATURE_INVALID",
        remedy="r",
        retry=Code.SIGNATURE_INVALID.retry,
    )
    assert answer_from_document(document) == document


def test_a_party_keeps_its_key_to_itself() -> None:
    """Goal: a private key does not get into logs. Method: the representation of a party."""
    party = Party("O=Bank A,L=London,C=GB", LEDGER)
    assert bytes(party.key).hex() not in repr(party)
    assert "key" not in repr(party)
