"""Merkle trees and receipts: every leaf proves itself, and nothing else passes."""

from __future__ import annotations

from hashlib import sha256

import msgspec
import pytest
from nacl.signing import SigningKey

from replica.notary.errors import BadRequest
from replica.notary.merkle import inclusion_paths, leaf_hash, root_from_path, tree_levels
from replica.notary.receipts import (
    NUMBER_MAX,
    Place,
    PlaceDocument,
    Receipt,
    ReceiptDocument,
    make_receipts,
    receipt_from_document,
    receipt_to_document,
    statement,
    verify_receipt,
)
from replica.notary.signatures import signature_holds
from tests.worlds.notary_logs import tx

KEY = SigningKey(b"\x07" * 32)
PUBLIC = bytes(KEY.verify_key)
OTHER = bytes(SigningKey(b"\x08" * 32).verify_key)


def _sign(message: bytes) -> bytes:
    return KEY.sign(message).signature


def _leaves(count: int) -> list[bytes]:
    return [leaf_hash(tx(number), tx(number + 1_000)) for number in range(count)]


def _root_by_definition(leaves: list[bytes]) -> bytes:
    """RFC 6962, section 2.1: split at the largest power of two below the number of leaves."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return sha256(b"\x01" + _root_by_definition(leaves[:split]) + _root_by_definition(leaves[split:])).digest()


@pytest.mark.parametrize("count", range(1, 71))
def test_each_leaf_of_each_tree_verifies_and_no_change_does(count: int) -> None:
    """Goal: a path proves one leaf at one place of one tree. Method: all leaves; other leaf, place, size and path."""
    leaves = _leaves(count)
    levels = tree_levels(leaves)
    root = levels[-1][0]
    assert root == _root_by_definition(leaves)
    for at, (leaf, path) in enumerate(zip(leaves, inclusion_paths(levels), strict=True)):
        assert root_from_path(leaf, at, count, path) == root
        assert root_from_path(sha256(leaf).digest(), at, count, path) != root
        for other in {at ^ 1, at + 1, at - 1, count - 1 - at} - {at}:
            assert root_from_path(leaf, other, count, path) != root
        assert root_from_path(leaf, at, count, (*path, leaf)) is None
        for cut in range(len(path)):
            assert root_from_path(leaf, at, count, path[:cut] + path[cut + 1 :]) is None
            flipped = (*path[:cut], sha256(path[cut]).digest(), *path[cut + 1 :])
            assert root_from_path(leaf, at, count, flipped) != root


def test_a_place_outside_the_tree_has_no_root() -> None:
    """Goal: no index is taken modulo anything. Method: negative, at the end, empty tree."""
    leaf = _leaves(1)[0]
    assert [root_from_path(leaf, at, size, []) for at, size in ((-1, 1), (1, 1), (0, 0), (0, -1))] == [None] * 4
    with pytest.raises(ValueError, match="at least one"):
        tree_levels([])


def test_an_inner_node_is_not_accepted_as_a_leaf() -> None:
    """Goal: separate domains. Method: present the two halves of an inner node as a transaction id and a digest."""
    leaves = _leaves(4)
    levels = tree_levels(leaves)
    left, right = levels[1]
    forged = Receipt(leaves[0], leaves[1], 0, 2, (right,), PUBLIC, _sign(statement(2, levels[-1][0])), 2)
    assert sha256(b"\x01" + leaves[0] + leaves[1]).digest() == left
    assert leaf_hash(leaves[0], leaves[1]) != left
    assert not verify_receipt(forged, PUBLIC)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9])
def test_each_receipt_of_a_batch_verifies_by_the_notary_key_alone(count: int) -> None:
    """Goal: one signature, a proof for each. Method: make, verify, by the right and by another key."""
    signed: list[bytes] = []

    def sign(message: bytes) -> bytes:
        signed.append(message)
        return _sign(message)

    pairs = [(tx(number), tx(number + 100)) for number in range(count)]
    receipts = make_receipts(pairs, PUBLIC, sign)
    assert len(signed) == 1
    assert [(receipt.tx_id, receipt.content_digest) for receipt in receipts] == pairs
    assert all(verify_receipt(receipt, PUBLIC) for receipt in receipts)
    assert not any(verify_receipt(receipt, OTHER) for receipt in receipts)
    assert make_receipts([], PUBLIC, sign) == []


def _receipt() -> Receipt:
    return make_receipts([(tx(number), tx(number + 100)) for number in range(5)], PUBLIC, _sign)[2]


@pytest.mark.parametrize(
    "changes",
    [
        {"tx_id": tx(9)},
        {"content_digest": tx(9)},
        {"tx_id": tx(102), "content_digest": tx(2)},
        {"tx_id": tx(2)[:31], "content_digest": tx(2)[31:] + tx(102)},
        {"tx_id": tx(2) + tx(102)[:1], "content_digest": tx(102)[1:]},
        {"leaf_index": 1},
        {"leaf_index": 3},
        {"leaf_index": -1},
        {"tree_size": 4},
        {"tree_size": 6},
        {"tree_size": 2**32 + 5},
        {"tree_size": 2**200},
        {"path": ()},
        {"path": (*_receipt().path, tx(1))},
        {"path": tuple(reversed(_receipt().path))},
        {"notary_key": OTHER},
        {"signature": bytes(64)},
        {"signature": b""},
        {"signature": _sign(b"something else")},
    ],
)
def test_any_change_of_a_receipt_fails(changes: dict[str, object]) -> None:
    """Goal: a receipt certifies exactly one id and content. Method: change each field, also the border between two."""
    assert verify_receipt(_receipt(), PUBLIC)
    assert not verify_receipt(msgspec.structs.replace(_receipt(), **changes), PUBLIC)


PLACE = Place("raft:log", 41, 7, 1_700_000_000_000_000)


def _places(count: int) -> list[Place | None]:
    return [msgspec.structs.replace(PLACE, log_offset=number) for number in range(count)]


def _placed() -> Receipt:
    return make_receipts([(tx(number), tx(number + 100)) for number in range(5)], PUBLIC, _sign, _places(5))[2]


@pytest.mark.parametrize("name", ["log_id", "log_offset", "epoch", "judged_us"])
def test_any_change_of_a_place_fails(name: str) -> None:
    """Goal: a receipt proves where and when. Method: change each part, by little and out of its range."""
    receipt = _placed()
    assert verify_receipt(receipt, PUBLIC) and receipt.place is not None
    found = getattr(receipt.place, name)
    bad = ["raft:lof", "raft:lo", "raft:log ", "", "é"] if name == "log_id" else [found + 1, -1, NUMBER_MAX + 1, 2**64]
    for value in bad:
        place = msgspec.structs.replace(receipt.place, **{name: value})
        assert not verify_receipt(msgspec.structs.replace(receipt, place=place), PUBLIC), value


def test_the_parts_of_a_place_cannot_change_places() -> None:
    """Goal: equal sums prove nothing. Method: two parts exchanged, and the border between number and log id moved."""
    receipt = _placed()
    assert receipt.place is not None
    swapped = msgspec.structs.replace(receipt.place, log_offset=receipt.place.epoch, epoch=receipt.place.log_offset)
    assert not verify_receipt(msgspec.structs.replace(receipt, place=swapped), PUBLIC)


def test_a_place_is_neither_taken_off_nor_put_on() -> None:
    """Goal: a receipt says where and when, or does not, as it was signed. Method: each way."""
    assert not verify_receipt(msgspec.structs.replace(_placed(), place=None), PUBLIC)
    assert not verify_receipt(msgspec.structs.replace(_receipt(), place=PLACE), PUBLIC)


def test_no_other_version_verifies() -> None:
    """Goal: a receipt is of this version. Method: other numbers, and a statement with the tag of version 1."""
    for receipt in (_placed(), _receipt()):
        assert [verify_receipt(msgspec.structs.replace(receipt, version=n), PUBLIC) for n in (0, 1, 3)] == [False] * 3
    leaf = leaf_hash(tx(1), tx(2), PLACE.encoded or b"")
    good = Receipt(tx(1), tx(2), 0, 1, (), PUBLIC, _sign(statement(1, leaf)), 2, PLACE)
    assert verify_receipt(good, PUBLIC)
    tag_of_1 = _sign(b"notary/receipt/1" + (1).to_bytes(4, "big") + leaf)
    assert not verify_receipt(msgspec.structs.replace(good, signature=tag_of_1), PUBLIC)


def test_a_batch_has_one_tree_whichever_places_are_known() -> None:
    """Goal: one signature, in the batch's order. Method: places known in a pattern."""
    signed: list[bytes] = []

    def sign(message: bytes) -> bytes:
        signed.append(message)
        return _sign(message)

    pairs = [(tx(number), tx(number + 100)) for number in range(7)]
    places = [place if one == "x" else None for place, one in zip(_places(7), "..xx..x", strict=True)]
    receipts = make_receipts(pairs, PUBLIC, sign, places)
    assert [(receipt.tx_id, receipt.content_digest) for receipt in receipts] == pairs
    assert [receipt.place for receipt in receipts] == places
    assert all(verify_receipt(receipt, PUBLIC) for receipt in receipts)
    assert len(signed) == 1


@pytest.mark.parametrize("key", [b"", b"short", bytes(32), bytes(33)])
def test_a_malformed_key_or_signature_is_just_not_valid(key: bytes) -> None:
    """Goal: strangers' receipts raise nothing. Method: keys and signatures of wrong lengths."""
    assert not signature_holds(key, b"message", _sign(b"message"))
    assert not signature_holds(PUBLIC, b"message", b"\x00" * 63)
    assert signature_holds(PUBLIC, b"message", _sign(b"message"))


def test_a_receipt_survives_its_json() -> None:
    """Goal: offline verification. Method: to the document and back."""
    for receipt in (_receipt(), _placed()):
        raw = msgspec.json.encode(receipt_to_document(receipt))
        assert receipt_from_document(msgspec.json.decode(raw, type=ReceiptDocument)) == receipt
        assert b'"version":2' in raw
        assert (b"place" in raw) == (receipt.place is not None)


@pytest.mark.parametrize(
    "changes",
    [
        {"tx_id": "ab" * 31},
        {"tx_id": "zz" * 32},
        {"content_digest": "ab" * 33},
        {"notary_key": "ab " * 32},
        {"signature": "ab" * 32},
        {"path": ["ab"]},
        {"path": ["ab" * 32] * 33},
        {"place": PlaceDocument("", 1, 1, 1)},
        {"place": PlaceDocument("x", -1, 1, 1)},
        {"place": PlaceDocument("x", 1, NUMBER_MAX + 1, 1)},
    ],
)
def test_a_document_with_other_than_hexadecimal_of_its_length_is_refused(changes: dict[str, object]) -> None:
    """Goal: one text for each receipt. Method: wrong lengths, digits, spaces, too long a path."""
    document = msgspec.structs.replace(receipt_to_document(_receipt()), **changes)
    with pytest.raises(BadRequest):
        receipt_from_document(document)


def test_a_document_of_another_version_is_refused() -> None:
    """Goal: nothing is verified that this release does not know. Method: no version, and others."""
    good = msgspec.to_builtins(receipt_to_document(_placed()))
    assert msgspec.convert(good, ReceiptDocument) == receipt_to_document(_placed())
    others = [good | {"version": number} for number in (0, 1, 3, None)]
    for bad in (*others, {name: value for name, value in good.items() if name != "version"}):
        with pytest.raises(msgspec.ValidationError, match="version"):
            msgspec.convert(bad, ReceiptDocument)
