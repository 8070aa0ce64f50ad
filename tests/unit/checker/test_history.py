"""Histories: written and read back, bounded, and nothing that is not one gets through."""

from __future__ import annotations

import io

import msgspec
import pytest
from nacl.signing import SigningKey

from ledger_api.client import Party
from replica.checker.check import Scope, check
from replica.checker.door import UNCHECKED
from replica.checker.findings import Findings, Summary
from replica.checker.history import (
    LINE_MAX_BYTES,
    CommandIds,
    Content,
    Event,
    HistoryError,
    HistoryWriter,
    Invoke,
    Ok,
    Refused,
    Signed,
    Unknown,
    encode_event,
    invoke_submission,
    read_history,
)
from replica.checker.operations import collect
from replica.notary.canonical import content_digest
from replica.notary.codes import Code, Retry
from replica.notary.requests import TimeWindow
from replica.notary.terms import decode_canonical
from tests.golden.samples import history
from tests.worlds.beginning import LEDGER
from tests.worlds.notary_logs import request_of, submission_of, tx

ID = tx(1).hex()
SENT = Invoke("p", 0, 10, ID, Content("O=A"))


def _read(*events: Event, raw: bytes = b"") -> list[Event]:
    return list(read_history(io.BytesIO(b"".join(map(encode_event, events)) + raw)))


def _collect(*events: Event) -> list[object]:
    return list(collect(events, None, Findings(), Summary()))


def test_what_is_written_is_read() -> None:
    """Goal: nothing is lost. Method: an event of each type through a stream."""
    stream = io.BytesIO()
    writer = HistoryWriter(stream)
    for event in history():
        writer.write(event)
    stream.seek(0)
    assert list(read_history(stream)) == history()
    assert stream.getvalue().count(b"\n") == len(history())


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b'{"type":"ok"}\n',
        b'{"type":"invoked","process":"p","op":0,"at_ns":1,"tx_id":"' + ID.encode() + b'"}\n',
        b'{"type":"unknown","process":"p","op":0,"at_ns":1,"code":"X","more":1}\n',
        b'{"type":"unknown","process":"p","op":-1,"at_ns":1,"code":"X"}\n',
        b'{"type":"unknown","process":"","op":0,"at_ns":1,"code":"X"}\n',
        b'{"type":"unknown","process":"p","op":0,"at_ns":1.5,"code":"X"}\n',
        b'{"type":"unknown","process":"\xff","op":0,"at_ns":1,"code":"X"}\n',
        b'{"type":"invoke","process":"p","op":0,"at_ns":1,"tx_id":"ab"}\n',
        b"[" * 100_000 + b"\n",
        b'{"type":"unknown","process":"p","op":0,"at_ns":1,"code":"X"}',
        b'{"type":"unk',
    ],
)
def test_a_line_that_is_no_event_is_named(line: bytes) -> None:
    """Goal: a person finds the place. Method: broken, cut off and foreign lines behind a good one."""
    with pytest.raises(HistoryError, match="line 2"):
        _read(SENT, raw=line)


def test_a_line_is_bounded() -> None:
    """Goal: a file of one line does not fill the memory. Method: a line above the limit."""
    with pytest.raises(HistoryError, match="line 1 is too long"):
        _read(raw=b'"' + b"x" * LINE_MAX_BYTES + b'"\n')


@pytest.mark.parametrize(
    "events",
    [
        [Unknown("p", 0, 10, "TIMEOUT")],
        [SENT, SENT],
        [Invoke("p", 1, 10, ID), Invoke("p", 0, 11, ID)],
        [SENT, Unknown("p", 0, 20, "TIMEOUT"), Unknown("p", 0, 21, "TIMEOUT")],
        [SENT, Ok("p", 0, 9, "ab" * 32, 1, 1)],
        [SENT, Ok("q", 0, 11, "ab" * 32, 1, 1)],
        [SENT, Ok("p", 0, 11, "zz" * 32, 1, 1)],
        [SENT, Refused("p", 0, 11, "NOT_ACTIVE")],
        [SENT, Refused("p", 0, 11, "OUTCOME_UNKNOWN")],
        [SENT, Refused("p", 0, 11, "SUBMISSION_IN_FLIGHT")],
        [SENT, Refused("p", 0, 11, "NO_SUCH_CODE")],
        [SENT, Refused("p", 0, 11, "CONFIG_INVALID")],
        [Invoke("p", 0, 10, "zz" * 32)],
        [Invoke("p", 0, 10, ID, Content("O=A", ("zz" * 33,)))],
        [Invoke("p", 0, 10, ID, Content("O=A", (f"{ID}:1", f"{ID}:1")))],
        [Invoke("p", 0, 10, ID, Content("O=A", (), (), 5, 5))],
    ],
)
def test_events_that_do_not_fit_together_are_refused(events: list[Event]) -> None:
    """Goal: what cannot have happened is no history. Method: answers without questions, twice, early; soft refusals."""
    with pytest.raises(HistoryError):
        _collect(*events)


def test_a_submission_becomes_an_event_and_an_operation() -> None:
    """Goal: digest and command survive. Method: a request with everything in it."""
    request = request_of(1, (1, 2), (3,), TimeWindow(5, 9))
    submission = submission_of(request)
    event = invoke_submission("p", 3, 77, request, submission)
    assert event.command == CommandIds("user", "command", submission.act_as, "submission")
    (operation,) = collect([event], None, Findings(), Summary())
    assert (operation.tx_id, operation.content_digest) == (request.tx_id, content_digest(request))
    assert (operation.name, operation.sent_ns, operation.is_look_up, operation.answer) == ("p/3", 77, False, None)


def test_every_definite_refusal_is_held_against_something() -> None:
    """Goal: no code is believed unseen. Method: each final code, of a plain submission and of a look-up, at a door that
    asks for no token; those that are about bytes on the way are named as such. Nobody is registered, so a
    key may be refused."""
    key = SigningKey(b"\x01" * 32)
    request = request_of(1)
    submission = msgspec.structs.replace(
        submission_of(request),
        public_key=bytes(key.verify_key),
        signature=key.sign(submission_of(request).request).signature,
    )
    asked = [invoke_submission("p", 0, 10, request, submission), Invoke("p", 0, 10, ID)]
    believed = set()
    for code in Code:
        if code.retry is Retry.NO and 400 <= code.status < 500:
            for sent in asked:
                report = check([sent, Refused("p", 0, 20, code.name)], [], scope=Scope(tokens=False))
                if not report.counts:
                    believed.add((code, sent.content is None))
    assert {code for code, _ in believed} <= UNCHECKED | {Code.TX_NOT_FOUND, Code.PARTY_UNKNOWN, Code.KEY_NOT_VALID}
    assert (Code.TX_NOT_FOUND, False) not in believed


def test_a_signature_that_covers_the_command_is_held_against_what_was_sent() -> None:
    """Goal: a refusal for a good signature is found. Method: refused for its signature; then what a
    relay sends with the same signature, and bytes that are not canonical."""
    party = Party("O=A", LEDGER, SigningKey(b"\x01" * 32))
    submission = party.sign(ID, command_id="c", user_id="u")
    request = decode_canonical(submission.request).request
    sent = invoke_submission("p", 0, 10, request, submission)
    relayed = invoke_submission("p", 0, 10, request, msgspec.structs.replace(submission, command_id="d"))

    def problems(asked: Invoke, code: str) -> dict[str, int]:
        return check([asked, Refused("p", 0, 20, code)], [], scope=Scope(tokens=False)).counts

    assert problems(sent, "SIGNATURE_INVALID") == {"REFUSED_WRONGLY": 1}
    assert problems(relayed, "SIGNATURE_INVALID") == {}
    for bad in ("zz", "00"):
        signed = Signed(party.public_key.hex(), submission.signature.hex(), bad)
        with pytest.raises(HistoryError):
            problems(msgspec.structs.replace(sent, signed=signed), "SIGNATURE_INVALID")


def test_what_may_have_been_on_its_way_excuses_a_refusal() -> None:
    """Goal: no false alarm. Method: a command id that another transaction may have used, by an open operation."""
    other, own = (invoke_submission("p", op, 10, request_of(op), submission_of(request_of(op))) for op in (1, 2))
    refused = Refused("p", 2, 20, "COMMAND_ID_REUSED")
    assert check([other, own, refused], []).counts == {}
    late = msgspec.structs.replace(other, process="q", at_ns=20)
    assert check([own, refused, late], []).counts == {"REFUSED_WRONGLY": 1}
    assert check([other, Refused("p", 1, 15, "COMMAND_ID_REUSED"), own, refused], []).counts == {"REFUSED_WRONGLY": 2}


def test_answers_are_counted_by_code() -> None:
    """Goal: the summary has what was checked. Method: one of each."""
    summary = Summary()
    collect(history(), None, Findings(), summary)
    assert summary.operations == 5
    assert summary.answers == {"NOTARISED": 2, "STATE_CONFLICT": 1, "TIME_WINDOW_CLOSED": 1, "UNKNOWN": 1}
