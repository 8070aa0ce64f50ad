"""Receipts: the notary's signature that a transaction with this content was notarised, checkable offline.

It also says where and when, if the signer knows: in which log, at which offset, under which epoch and at which judged
time (docs/decisions/0020).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Sequence
from typing import Final, Literal

import msgspec

from replica.notary.errors import BadRequest, InvariantBroken
from replica.notary.merkle import inclusion_paths, leaf_hash, root_from_path, tree_levels
from replica.notary.requests import DIGEST_BYTES, SIGNATURE_BYTES, TX_ID_BYTES
from replica.notary.signatures import notary_key_from_hex, notary_signature_holds
from replica.notary.texts import bytes_from_hex

RECEIPT_VERSION: Final = 2
RECEIPT_TAG = b"notary/receipt/2"
PATH_MAX = 32
LOG_ID_MAX = 255
NUMBER_MAX = 2**53 - 1  # every language reads such a number from JSON exactly
_LOG_ID = re.compile(rf"[\x21-\x7e]{{1,{LOG_ID_MAX}}}")  # one text for each run of bytes
_PLACE = struct.Struct(">QQQH")


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

    The signature, of the key's own algorithm, covers `statement(tree_size, root)`; `path` leads from the leaf to that
    root. Frames of a stream have a receipt with just these names.
    """

    tx_id: bytes
    content_digest: bytes
    leaf_index: int
    tree_size: int
    path: tuple[bytes, ...]
    notary_key: bytes
    signature: bytes
    version: int
    place: Place | None = None


class PlaceDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and when: the JSON form of a Place. `judged_us`: microseconds since 1970, UTC."""

    log_id: str
    log_offset: int
    epoch: int
    judged_us: int


class ReceiptDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The JSON form of a receipt: every byte string in hexadecimal. The place may be missing."""

    tx_id: str
    content_digest: str
    leaf_index: int
    tree_size: int
    path: list[str]
    notary_key: str
    signature: str
    version: Literal[2]
    place: PlaceDocument | None = None


def statement(tree_size: int, root: bytes) -> bytes:
    """The bytes that the notary signs for a batch."""
    return RECEIPT_TAG + tree_size.to_bytes(4, "big") + root


def make_receipts(
    notarised: Sequence[tuple[bytes, bytes]],
    notary_key: bytes,
    sign: Callable[[bytes], bytes],
    places: Sequence[Place | None] = (),
) -> list[Receipt]:
    """Receipts for a batch of (transaction id, content digest), in the batch's order, with one signature for all.

    `places`: where each was first notarised; None where that is not known.
    """
    if not notarised:
        return []
    found = list(zip(notarised, places or (None,) * len(notarised), strict=True))
    levels = tree_levels([_leaf(tx_id, digest, place) for (tx_id, digest), place in found])
    size = len(notarised)
    signature = sign(statement(size, levels[-1][0]))
    return [
        Receipt(tx_id, digest, at, size, path, notary_key, signature, RECEIPT_VERSION, place)
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
    if receipt.version != RECEIPT_VERSION or receipt.notary_key != notary_key or receipt.tree_size >= 2**32:
        return False
    if len(receipt.tx_id) != TX_ID_BYTES or len(receipt.content_digest) != DIGEST_BYTES:
        return False  # the leaf hashes both concatenated: other lengths would move the border between them
    place = b"" if receipt.place is None else receipt.place.encoded
    if place is None:
        return False
    leaf = leaf_hash(receipt.tx_id, receipt.content_digest, place)
    root = root_from_path(leaf, receipt.leaf_index, receipt.tree_size, receipt.path)
    if root is None:
        return False
    return holds(notary_key, statement(receipt.tree_size, root), receipt.signature)


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
        RECEIPT_VERSION,
        None if receipt.place is None else PlaceDocument(**msgspec.structs.asdict(receipt.place)),
    )


def receipt_from_document(document: ReceiptDocument) -> Receipt:
    """The receipt in a JSON form. Raises BadRequest when a field is not hexadecimal of its length, or no place."""
    if len(document.path) > PATH_MAX:
        raise BadRequest(f"a receipt's path has at most {PATH_MAX} hashes")
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
