"""Notes as a hostile officer or a stranger would write them: what is taken is what every reader can read and print."""

from __future__ import annotations

from random import Random
from typing import Any

import msgspec
import pytest

from replica.notary.granters import Claim
from replica.notary.parties import decode_party_note
from replica.notary.records import BarrierRecord, Undecodable, encode_record
from tests.worlds.signed_notes import ANNA, officers_act, registration

HOSTILE = [
    {"party": "O=\x1b[31mBank A,C=GB"},
    {"party": "O=Bank\u202eA,C=GB"},
    {"party": "O=Bank A,C=GB\n"},
    {"party": ""},
    {"party": "O=" + "a" * 511},
    {"party": "O=" + "é" * 256},
    {"operator": "\x1b[2Janna"},
    {"operator": "a" * 513},
    {"operator": ""},
    {"party_key": b"k" * 31},
    {"public_key": b"k" * 33},
    {"signature": b""},
    {"from_us": -1},
    {"until_us": 2**63},
]


@pytest.mark.parametrize("changes", HOSTILE)
def test_no_registration_has_what_cannot_be_shown_or_kept(changes: dict[str, Any]) -> None:
    """Goal: no name hides in a terminal, and none is larger than a table holds. Method: one hostile element each."""
    with pytest.raises(Undecodable):
        decode_party_note(encode_record(msgspec.structs.replace(registration(ANNA), **changes)))


def test_only_acts_and_registrations_are_notes_whatever_else_is_sent() -> None:
    """Goal: one error for all that is no note. Method: another kind of record; bytes changed, cut off and added."""
    barrier = BarrierRecord(1, bytes(16), "r1", Claim(-1), 2, 3)
    random, fine = Random(7), [encode_record(note) for note in (officers_act(ANNA, 0, ANNA), registration(ANNA))]
    hostile = [encode_record(barrier), b"", *(value + b"\0" for value in fine), *(value[:-1] for value in fine)]
    for value in hostile:
        with pytest.raises(Undecodable):
            decode_party_note(value)
    taken = 0
    for value in fine * 500:
        changed = bytearray(value)
        changed[random.randrange(len(value))] = random.randrange(256)
        try:
            note = decode_party_note(bytes(changed))
        except Undecodable:
            continue
        taken += 1  # a byte of a key, a name or a signature: the signature is looked at elsewhere
        assert decode_party_note(encode_record(note)) == note
    assert 0 < taken < 1_000
