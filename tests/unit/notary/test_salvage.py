"""The tail salvage: its file."""

from __future__ import annotations

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from replica.active.signer import FileSigner
from replica.notary import rules, salvage
from replica.notary.errors import SalvageDamaged
from replica.notary.rules import STATE_KEY, TX_KEY
from replica.notary.salvage import (
    LostEntry,
    decode_salvage,
    encode_salvage,
)
from tests.worlds.archive_world import SIGNER
from tests.worlds.notary_logs import state, tx
from tests.worlds.salvage_world import some_tail

OTHER_KEY = FileSigner(Ed25519PrivateKey.from_private_bytes(b"b" * 32))


def entry(offset: int, key: bytes, name: bytes) -> LostEntry:
    return LostEntry(offset, key, name + offset.to_bytes(8, "big"))


def test_a_file_says_what_was_put_in() -> None:
    """Goal: nothing changes on the way. Method: encode and decode; look every offset up; encode again."""
    tail = some_tail()
    header, entries = tail.merged()
    found = tail.salvage()
    assert list(found.entries()) == sorted(entries, key=lambda one: (one.offset, one.key))
    assert found.header == header
    assert (found.first, found.last) == (4, 9)
    for offset in range(-1, 12):
        assert (
            found.entries_at(offset) == {one.key: one.value for one in entries if one.offset == offset}
            if offset >= 0
            else True
        )
    assert encode_salvage(header, reversed(entries), SIGNER.sign) == tail.raw()


def test_no_bit_of_a_file_can_flip() -> None:
    """Goal: a changed file is never used. Method: flip every bit of one; none is accepted."""
    raw = some_tail(archived=8).raw()
    for at in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[at // 8] ^= 1 << at % 8
        with pytest.raises(SalvageDamaged):
            decode_salvage(bytes(changed), SIGNER.public_key)
        with pytest.raises(SalvageDamaged):
            decode_salvage(bytes(changed))


def test_no_file_is_accepted_that_is_cut_short_or_goes_on() -> None:
    """Goal: a copy that did not end is refused. Method: every length but the right one, and bytes behind it."""
    raw = some_tail().raw()
    for length in range(len(raw)):
        with pytest.raises(SalvageDamaged):
            decode_salvage(raw[:length], SIGNER.public_key)
    with pytest.raises(SalvageDamaged):
        decode_salvage(raw + b"\0", SIGNER.public_key)


def test_only_the_operators_key_signs() -> None:
    """Goal: nobody else makes a salvage. Method: a file that is whole and signed by another key, which it names."""
    header, entries = some_tail().merged()
    foreign = encode_salvage(msgspec.structs.replace(header, public_key=OTHER_KEY.public_key), entries, OTHER_KEY.sign)
    assert decode_salvage(foreign).header.public_key == OTHER_KEY.public_key
    with pytest.raises(SalvageDamaged, match="not signed by the operator's key"):
        decode_salvage(foreign, SIGNER.public_key)


@pytest.mark.parametrize(
    "entries",
    [
        [entry(5, STATE_KEY + state(1), tx(1))],  # a state, and nobody who consumed it
        [entry(5, TX_KEY + tx(1), bytes(32)), entry(5, TX_KEY + tx(2), bytes(32))],  # two at one offset
        [entry(5, TX_KEY + tx(1), bytes(32)), entry(5, STATE_KEY + state(1), tx(2))],  # consumed by another
        [entry(5, TX_KEY + tx(1), bytes(32)), entry(6, TX_KEY + tx(1), bytes(32))],  # notarised twice
        [entry(3, TX_KEY + tx(1), bytes(32))],  # archived
        [entry(10, TX_KEY + tx(1), bytes(32))],  # behind the lost range
        [entry(5, b"m/position", bytes(32))],
        [LostEntry(5, TX_KEY + tx(1), bytes(32) + (6).to_bytes(8, "big"))],
        [
            *[entry(5, TX_KEY + tx(1), bytes(32)), entry(5, STATE_KEY + state(1), tx(1))],
            *[entry(6, TX_KEY + tx(2), bytes(32)), entry(6, STATE_KEY + state(1), tx(2))],
        ],  # a state spent twice
    ],
)
def test_what_no_lost_record_can_have_added_is_refused(entries: list[LostEntry]) -> None:
    """Goal: a file never contradicts itself. Method: entries that no log makes, signed all the same."""
    header, _ = some_tail().merged()
    with pytest.raises(SalvageDamaged):
        encode_salvage(header, entries, SIGNER.sign)


@pytest.mark.parametrize(
    "changes",
    [{"version": 2}, {"last": 3}, {"applied": 8}, {"states_unknown": -1}, {"topic_id": "other"}, {"position": b"x"}],
)
def test_a_header_that_cannot_be_is_refused(changes: dict[str, object]) -> None:
    """Goal: the range is one. Method: each way in which it is none, signed all the same."""
    header, entries = some_tail().merged()
    with pytest.raises(SalvageDamaged):
        encode_salvage(msgspec.structs.replace(header, **changes), entries, SIGNER.sign)


def test_the_keys_are_those_of_the_rules() -> None:
    """Goal: two names, one meaning. Method: compare, because the checker must not import the rules."""
    assert (salvage.STATE_KEY, salvage.TX_KEY) == (rules.STATE_KEY, rules.TX_KEY)
