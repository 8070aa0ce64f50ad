"""Acts and registrations as JSON lines: what is in them, and that no change of them goes unnoticed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nacl.signing import SigningKey

from replica.notary.counted import CountedNote
from replica.notary.note_lines import (
    BEFORE_THE_FIRST,
    Exported,
    decode_cursor,
    encode_cursor,
    line_digest,
    note_lines,
    read_on,
    why_broken,
)
from replica.notary.note_signatures import signed_note
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.records import ActRecord, RegistrationRecord, SalvageRecord
from tests.worlds.beginning import LEDGER, OTHER_LEDGER
from tests.worlds.notary_logs import TOPIC, Log
from tests.worlds.party_logs import logs_with_parties

KEY = SigningKey(bytes([7]) * 32)
HEAD = (2, b"a" * 16, 3, 1_000)
OF_KEY = (bytes(KEY.verify_key), bytes(64))


def _signed(record: Any) -> Any:
    return signed_note(record, LEDGER, lambda message: KEY.sign(message).signature)


ACT = _signed(ActRecord(*HEAD, "pause", 0, b"body", "zoë", "line\u2028feed and \\ulong", *OF_KEY))
REGISTRATION = _signed(RegistrationRecord(*HEAD, "O=Bank A,L=London,C=GB", b"p" * 32, 4, 5, 6, "zoë", *OF_KEY))
FORGED = msgspec.structs.replace(ACT, reason="another")
SALVAGE = SalvageRecord(2, b"a" * 16, 4, 0, 1, b"d" * 32)
NOTES = [CountedNote(10 + at, record, 9) for at, record in enumerate([ACT, SALVAGE, REGISTRATION, REGISTRATION, ACT])]
LINES = list(note_lines(NOTES, LEDGER))


def broken_at(lines: list[bytes], previous: str = BEFORE_THE_FIRST) -> int | None:
    """The number of the first line that is not as it was made."""
    found = why_broken(lines, previous)
    return None if found is None else found[0]


def test_lines_of_two_ledgers_are_no_export() -> None:
    """Goal: a note of a rehearsal's ledger does not pass for one of ours. Method: one that is signed for that, chained
    to ours."""
    foreign = signed_note(ACT, OTHER_LEDGER, lambda message: KEY.sign(message).signature)
    (line,) = note_lines([CountedNote(99, foreign, 9)], OTHER_LEDGER, line_digest(LINES[-1]))
    assert why_broken([line], line_digest(LINES[-1])) is None
    assert why_broken([*LINES, line]) == (len(LINES), "is of another ledger than the line before")


def test_a_line_has_who_when_what_and_why() -> None:
    """Goal: a SIEM needs nothing else. Method: all members of each kind, the chain by hand."""
    act, registration, *_ = (json.loads(line) for line in LINES)
    assert (act["previous"], act["log_offset"], act["stamp_us"], act["operator"]) == (
        BEFORE_THE_FIRST,
        10,
        1_000,
        "zoë",
    )
    assert (act["name"], act["body"], act["reason"], act["signed"]) == ("pause", b"body".hex(), ACT.reason, True)
    assert (registration["party"], registration["before"]) == (REGISTRATION.party, 4)
    assert (registration["from_us"], registration["until_us"]) == (5, 6)
    assert registration["party_key"] == (b"p" * 32).hex()
    assert registration["previous"] == line_digest(LINES[0])
    assert not any(b"\n" in line for line in LINES)


def test_an_export_may_be_made_in_parts() -> None:
    """Goal: an export goes on where the one before ended. Method: every cut."""
    for cut in range(len(NOTES) + 1):
        head = list(note_lines(NOTES[:cut], LEDGER))
        newest = line_digest(head[-1]) if head else BEFORE_THE_FIRST
        tail = list(note_lines(NOTES[cut:], LEDGER, newest))
        assert head + tail == LINES
        assert why_broken(tail, newest) is None
    assert why_broken(LINES) is None


@pytest.mark.thorough
@settings(deadline=None)
@given(logs_with_parties(), st.integers(0, 45))
def test_an_export_of_a_log_goes_on_at_its_cursor(log: Log, cut: int) -> None:
    """Goal: each note that counts is there once, and no void one, wherever an export ended. Method: random logs, cut
    anywhere, with the cursor's bytes between; against reading the whole."""
    lines, done = read_on(Exported(begin(TOPIC)), log[:cut])
    more, end = read_on(decode_cursor(encode_cursor(done)), log[cut:])
    whole = read_records(begin(TOPIC), log)
    counting = [one for one in whole.counted if isinstance(one, CountedNote)]
    assert lines + more == list(note_lines(counting, whole.position.ledger_id))
    assert (end.position, end.lines) == (whole.position, len(lines + more))
    assert end.digest == (line_digest((lines + more)[-1]) if lines + more else BEFORE_THE_FIRST)


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"\xff", encode_cursor(Exported(begin(TOPIC)))[:-20]])
def test_what_is_no_cursor_is_refused(raw: bytes) -> None:
    """Goal: one error of ours. Method: bytes that no export wrote, and a position of a newer release."""
    for bad in (raw, encode_cursor(Exported(begin(TOPIC))).replace(b'"9b04', b'"9b05')):
        with pytest.raises(ValueError):
            decode_cursor(bad)


@pytest.mark.parametrize("at", range(len(LINES) - 1))
def test_a_change_is_found(at: int) -> None:
    """Goal: nobody edits an export unnoticed. Method: each line changed where nobody signed, and where somebody did,
    dropped, doubled, swapped with the next."""
    stamped = LINES[at].replace(b'"stamp_us":1000', b'"stamp_us":1001')
    assert broken_at([*LINES[:at], stamped, *LINES[at + 1 :]]) == at + 1
    renamed = LINES[at].replace("zoë".encode(), b"eve")
    assert broken_at([*LINES[:at], renamed, *LINES[at + 1 :]]) == at
    assert broken_at([*LINES[:at], *LINES[at + 1 :]]) == at
    assert broken_at([*LINES[: at + 1], *LINES[at:]]) == at + 1
    assert broken_at([*LINES[:at], LINES[at + 1], LINES[at], *LINES[at + 2 :]]) == at


def test_what_nobody_signed_is_exported_and_found() -> None:
    """Goal: an export hides nothing, and whoever verifies it learns of a bad signature. Method: a note under another
    reason than was signed."""
    line = next(note_lines([CountedNote(1, FORGED, 9)], LEDGER))
    assert json.loads(line)["signed"] is False
    assert why_broken([line]) == (0, "has a signature that does not hold")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff",
        b" " + LINES[0],
        LINES[0].replace(b":10,", b":10, "),
        b"[" * 5_000,
        LINES[0].replace(b'"name":"pause",', b""),
        LINES[0][:-1] + b',"party":"O=A"}',
        LINES[1].replace(b'"until_us":6', b'"until_us":-6'),
        LINES[1].replace(b'"until_us":6', b'"until_us":99999999999999999999'),
        LINES[0].replace(b"body".hex().encode(), b"6"),
    ],
)
def test_what_is_no_line_is_found_there(line: bytes) -> None:
    """Goal: one spelling, and no crash. Method: what msgspec refuses, and what it would read all the same."""
    assert broken_at([line]) == 0


def test_offsets_rise() -> None:
    """Goal: a chain that was made anew from records in another order is found. Method: a whole chain, not in order."""
    assert broken_at(list(note_lines([NOTES[2], NOTES[0]], LEDGER))) == 1
