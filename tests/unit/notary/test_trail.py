"""The operators' trail as JSON lines: what is in them, and that no change of them goes unnoticed."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from nacl.signing import SigningKey

from replica.notary.counted import CountedNote
from replica.notary.note_signatures import signed_note
from replica.notary.records import ActRecord, RegistrationRecord, SalvageRecord
from replica.notary.trail import BEFORE_THE_FIRST, first_broken, line_digest, trail_lines

KEY = SigningKey(bytes([7]) * 32)
HEAD = (2, b"a" * 16, 3, 1_000)
OF_KEY = (bytes(KEY.verify_key), bytes(64))


def _signed(record: Any) -> Any:
    return signed_note(record, lambda message: KEY.sign(message).signature)


ACT = _signed(ActRecord(*HEAD, "pause", 0, b"body", "zoë", "line\u2028feed and \\ulong", *OF_KEY))
REGISTRATION = _signed(RegistrationRecord(*HEAD, "O=Bank A,L=London,C=GB", b"p" * 32, 5, 6, "zoë", *OF_KEY))
FORGED = msgspec.structs.replace(ACT, reason="another")
SALVAGE = SalvageRecord(2, b"a" * 16, 4, 0, 1, b"d" * 32)
NOTES = [CountedNote(10 + at, record, 9) for at, record in enumerate([ACT, SALVAGE, REGISTRATION, FORGED, ACT])]
LINES = list(trail_lines(NOTES))


def test_a_line_has_who_when_what_and_why() -> None:
    """Goal: a SIEM needs nothing else. Method: all members of each kind, the chain by hand."""
    act, registration, forged, _ = (json.loads(line) for line in LINES)
    assert (act["previous"], act["log_offset"], act["stamp_us"], act["operator"]) == (
        BEFORE_THE_FIRST,
        10,
        1_000,
        "zoë",
    )
    assert (act["name"], act["body"], act["reason"], act["signed"]) == ("pause", b"body".hex(), ACT.reason, True)
    assert (registration["party"], registration["from_us"], registration["until_us"]) == (REGISTRATION.party, 5, 6)
    assert registration["party_key"] == (b"p" * 32).hex()
    assert registration["previous"] == line_digest(LINES[0])
    assert forged["signed"] is False
    assert not any(b"\n" in line for line in LINES)


def test_a_trail_may_be_exported_in_parts() -> None:
    """Goal: an export goes on where the one before ended. Method: every cut."""
    for cut in range(len(NOTES) + 1):
        head = list(trail_lines(NOTES[:cut]))
        newest = line_digest(head[-1]) if head else BEFORE_THE_FIRST
        tail = list(trail_lines(NOTES[cut:], newest))
        assert head + tail == LINES
        assert first_broken(tail, newest) is None
    assert first_broken(LINES) is None


@pytest.mark.parametrize("at", range(len(LINES) - 1))
def test_a_change_is_found_at_the_next_line(at: int) -> None:
    """Goal: nobody edits a trail unnoticed. Method: each line changed, dropped, doubled, swapped with the next."""
    changed = LINES[at].replace(b'"stamp_us":1000', b'"stamp_us":1001')
    assert first_broken([*LINES[:at], changed, *LINES[at + 1 :]]) == at + 1
    assert first_broken([*LINES[:at], *LINES[at + 1 :]]) == at
    assert first_broken([*LINES[: at + 1], *LINES[at:]]) == at + 1
    assert first_broken([*LINES[:at], LINES[at + 1], LINES[at], *LINES[at + 2 :]]) == at


@pytest.mark.parametrize(
    "line", [b"", b"{}", b"[]", b"\xff", b" " + LINES[0], LINES[0].replace(b":10,", b":10, "), b"[" * 5_000]
)
def test_what_is_no_line_is_found_there(line: bytes) -> None:
    """Goal: one spelling, and no crash. Method: what msgspec refuses, and what it would read all the same."""
    assert first_broken([line]) == 0


def test_offsets_rise() -> None:
    """Goal: a chain that was made anew from records in another order is found. Method: a whole chain, not in order."""
    assert first_broken(list(trail_lines([NOTES[2], NOTES[0]]))) == 1
