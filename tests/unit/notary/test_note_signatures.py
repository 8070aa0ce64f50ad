"""What operators sign: by hand from docs/formats.md, and that nothing signed can be changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nacl.signing import SigningKey

from replica.notary.note_signatures import note_signature_holds, note_statement, signed_note
from replica.notary.records import ActRecord, RegistrationRecord
from tests.worlds.beginning import LEDGER, OTHER_LEDGER

KEY = SigningKey(bytes([7]) * 32)
PUBLIC = bytes(KEY.verify_key)
HEAD = (2, b"a" * 16, 3, 1_000)
ACT = ActRecord(*HEAD, "pause", 4, b"body", "zoë", "maintenance", PUBLIC, bytes(64))
REGISTRATION = RegistrationRecord(*HEAD, "O=Bank A,L=London,C=GB", b"p" * 32, 3, 5, 2**40, "zoë", PUBLIC, bytes(64))
VECTORS = json.loads((Path(__file__).parents[2] / "golden" / "vectors" / "notes.json").read_text())


def sign(message: bytes) -> bytes:
    return KEY.sign(message).signature


SIGNED: list[Any] = [signed_note(ACT, LEDGER, sign), signed_note(REGISTRATION, LEDGER, sign)]
IDS = ["act", "registration"]


def test_the_signed_bytes_are_those_of_the_format() -> None:
    """Goal: anyone can sign in another language. Method: MessagePack written out."""
    text = "zoë".encode()
    name = b"\xa4" + text
    key = b"\xc4\x20" + PUBLIC
    act = b"\x96\xa5pause\x04\xc4\x04body" + name + b"\xabmaintenance" + key
    assert note_statement(ACT, LEDGER) == b"notary/act/2" + LEDGER + act
    party = b"\xb6O=Bank A,L=London,C=GB"
    period = b"\x03\x05\xcf" + (2**40).to_bytes(8, "big")
    registration = b"\x97" + party + b"\xc4\x20" + b"p" * 32 + period + name + key
    assert note_statement(REGISTRATION, LEDGER) == b"notary/party/2" + LEDGER + registration


@pytest.mark.parametrize(("record", "kind"), list(zip(SIGNED, IDS, strict=True)), ids=IDS)
def test_the_vectors_hold(record: Any, kind: str) -> None:
    """Goal: they never change. Method: bytes and signature of each kind."""
    case = VECTORS[kind]
    assert (case["statement"], case["signature"]) == (note_statement(record, LEDGER).hex(), record.signature.hex())


@pytest.mark.parametrize("record", SIGNED, ids=IDS)
def test_every_field_from_the_fifth_element_on_is_covered(record: Any) -> None:
    """Goal: nothing that an operator decided can be changed. Method: another value of each field in turn."""
    assert note_signature_holds(record, LEDGER)
    assert not note_signature_holds(record, OTHER_LEDGER)
    for field in record.__struct_fields__:
        value = getattr(record, field)
        other = value + 1 if isinstance(value, int) else value[:-1] + ("x" if isinstance(value, str) else b"x")
        holds = note_signature_holds(msgspec.structs.replace(record, **{field: other}), LEDGER)
        assert holds is (field in ("format", "activation_id", "sequence", "stamp_us")), field
