"""Receipts: the notary's signature that a transaction with this content was notarised, checkable offline.

Version 2 also says where and when: in which log, at which offset, under which epoch and at which judged time. Version 1
is verified for ever (docs/decisions/0020).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from replica.notary.errors import BadRequest, InvariantBroken
from replica.notary.merkle import inclusion_paths, leaf_hash, root_from_path, tree_levels
from replica.notary.requests import DIGEST_BYTES, SIGNATURE_BYTES, TX_ID_BYTES
from replica.notary.signatures import notary_key_from_hex, notary_signature_holds
from replica.notary.texts import bytes_from_hex

RECEIPT_TAG = b"notary/receipt/1"
RECEIPT_TAG_2 = b"notary/receipt/2"
PATH_MAX = 32
LOG_ID_MAX = 255
NUMBER_MAX = 2**53 - 1  # every language reads such a number from JSON exactly
_LOG_ID = re.compile(rf"[\x21-\x7e]{{1,{LOG_ID_MAX}}}")  # one text for each run of bytes
_PLACE = struct.Struct(">QQQH")

ReceiptVersion = Literal[1, 2]


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where and when a transaction was first notarised: the log's id, the offset of its record, the epoch in force
    there, and the time that the record was judged at, microseconds UTC."""

    log_id: str
    log_offset: int
    epoch: int
    judged_us: int

    @property
    def encoded(self) -> bytes | None:
        """The bytes that a leaf commits to, after the content digest; None if some value has no such form."""
        numbers = (self.log_offset, self.epoch, self.judged_us)
        if _LOG_ID.fullmatch(self.log_id) is None or not all(0 <= number <= NUMBER_MAX for number in numbers):
            return None
        return _PLACE.pack(*numbers, len(self.log_id)) + self.log_id.encode("ascii")


class Receipt(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Proof that the holder of `notary_key` notarised `tx_id` with the content of `content_digest`.

    The signature, of the key's own algorithm, covers `statement(version, tree_size, root)`; `path` leads from the leaf
    to that root. Version 2 has a place, version 1 has none. Frames of a stream have a receipt with just these names.
    """

    tx_id: bytes
    content_digest: bytes
    leaf_index: int
    tree_size: int
    path: tuple[bytes, ...]
    notary_key: bytes
    signature: bytes
    version: int = 1
    place: Place | None = None


class PlaceDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and when: the JSON form of a Place. `judged_us`: microseconds since 1970, UTC."""

    log_id: str
    log_offset: int
    epoch: int
    judged_us: int


class ReceiptDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON form of a receipt: every byte string in hexadecimal. Version 2 has a place, version 1 names neither."""

    tx_id: str
    content_digest: str
    leaf_index: int
    tree_size: int
    path: list[str]
    notary_key: str
    signature: str
    version: ReceiptVersion = 1
    place: PlaceDocument | None = None


def statement(tree_size: int, root: bytes, version: ReceiptVersion = 1) -> bytes:
    """The bytes that the notary signs for a batch."""
    tag = RECEIPT_TAG if version == 1 else RECEIPT_TAG_2
    return tag + tree_size.to_bytes(4, "big") + root


def make_receipts(
    notarised: Sequence[tuple[bytes, bytes]],
    notary_key: bytes,
    sign: Callable[[bytes], bytes],
    places: Sequence[Place | None] = (),
) -> list[Receipt]:
    """Receipts for a batch of (transaction id, content digest), in the batch's order, with one signature for all.

    `places`: where each was first notarised; without it a receipt is of version 1. A batch that has both kinds has two
    trees, and two signatures.
    """
    placed = [at for at, place in enumerate(places) if place is not None]
    if not placed:
        return _make_tree(notarised, (None,) * len(notarised), notary_key, sign)
    if len(placed) == len(notarised):
        return _make_tree(notarised, places, notary_key, sign)
    bare = sorted(set(range(len(notarised))) - set(placed))
    made: dict[int, Receipt] = {}
    for group in (bare, placed):
        chosen = [notarised[at] for at in group], [places[at] for at in group]
        made.update(zip(group, _make_tree(*chosen, notary_key, sign), strict=True))
    return [made[at] for at in range(len(notarised))]


def _make_tree(
    notarised: Sequence[tuple[bytes, bytes]],
    places: Sequence[Place | None],
    notary_key: bytes,
    sign: Callable[[bytes], bytes],
) -> list[Receipt]:
    """Receipts of one version: all have a place, or none has."""
    if not notarised:
        return []
    found = list(zip(notarised, places, strict=True))
    levels = tree_levels([_leaf(tx_id, digest, place) for (tx_id, digest), place in found])
    size = len(notarised)
    version: ReceiptVersion = 1 if places[0] is None else 2
    signature = sign(statement(size, levels[-1][0], version))
    return [
        Receipt(tx_id, digest, at, size, path, notary_key, signature, version, place)
        for at, (((tx_id, digest), place), path) in enumerate(zip(found, inclusion_paths(levels), strict=True))
    ]


def _leaf(tx_id: bytes, content_digest: bytes, place: Place | None) -> bytes:
    if place is None:
        return leaf_hash(tx_id, content_digest)
    encoded = place.encoded
    if encoded is None:
        raise InvariantBroken(f"no receipt can say {place}")
    return leaf_hash(tx_id, content_digest, encoded)


def verify_receipt(
    receipt: Receipt, notary_key: bytes, holds: Callable[[bytes, bytes, bytes], bool] = notary_signature_holds
) -> bool:
    """Whether the receipt proves, by this key, that the transaction was notarised with this content, and at its place.

    `holds` checks a signature. To verify many receipts of few batches, pass a function that caches its results.
    """
    if receipt.notary_key != notary_key or receipt.tree_size >= 2**32:
        return False
    if len(receipt.tx_id) != TX_ID_BYTES or len(receipt.content_digest) != DIGEST_BYTES:
        return False  # the leaf hashes both concatenated: other lengths would move the border between them
    version: ReceiptVersion = 1 if receipt.place is None else 2
    place = b"" if receipt.place is None else receipt.place.encoded
    if place is None or receipt.version != version:
        return False
    leaf = leaf_hash(receipt.tx_id, receipt.content_digest, place)
    root = root_from_path(leaf, receipt.leaf_index, receipt.tree_size, receipt.path)
    if root is None:
        return False
    return holds(notary_key, statement(receipt.tree_size, root, version), receipt.signature)


def receipt_to_document(receipt: Receipt) -> ReceiptDocument:
    """The JSON form of a receipt."""
    return ReceiptDocument(
        receipt.tx_id.hex(),
        receipt.content_digest.hex(),
        receipt.leaf_index,
        receipt.tree_size,
        [node.hex() for node in receipt.path],
        receipt.notary_key.hex(),
        receipt.signature.hex(),
        1 if receipt.place is None else 2,
        None if receipt.place is None else PlaceDocument(**msgspec.structs.asdict(receipt.place)),
    )


def receipt_from_document(document: ReceiptDocument) -> Receipt:
    """The receipt in a JSON form. Raises BadRequest when a field is not hexadecimal of its length, or not of the
    version."""
    if len(document.path) > PATH_MAX:
        raise BadRequest(f"a receipt's path has at most {PATH_MAX} hashes")
    if (document.version == 2) != (document.place is not None):
        raise BadRequest("a receipt of version 2 has a place, and one of version 1 has none")
    place = None if document.place is None else Place(**msgspec.structs.asdict(document.place))
    if place is not None and place.encoded is None:
        raise BadRequest(f"a place has numbers below 2^53, and a log id of 1 to {LOG_ID_MAX} visible characters")
    return Receipt(
        bytes_from_hex("tx_id", document.tx_id, TX_ID_BYTES),
        bytes_from_hex("content_digest", document.content_digest, DIGEST_BYTES),
        document.leaf_index,
        document.tree_size,
        tuple([bytes_from_hex("path", node, 32) for node in document.path]),
        notary_key_from_hex("notary_key", document.notary_key),
        bytes_from_hex("signature", document.signature, SIGNATURE_BYTES),
        document.version,
        place,
    )
