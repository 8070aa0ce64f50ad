"""Receipts: the notary's signature that a transaction with this content was notarised, checkable offline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from replica.notary.errors import BadRequest
from replica.notary.merkle import inclusion_paths, leaf_hash, root_from_path, tree_levels
from replica.notary.requests import DIGEST_BYTES, SIGNATURE_BYTES, TX_ID_BYTES
from replica.notary.signatures import signature_holds
from replica.notary.texts import bytes_from_hex

RECEIPT_TAG = b"notary/receipt/1"
PATH_MAX = 32


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Proof that the holder of `notary_key` notarised `tx_id` with the content of `content_digest`.

    The Ed25519 signature covers `statement(tree_size, root)`; `path` leads from the leaf to that root.
    """

    tx_id: bytes
    content_digest: bytes
    leaf_index: int
    tree_size: int
    path: tuple[bytes, ...]
    notary_key: bytes
    signature: bytes


class ReceiptDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The JSON form of a receipt: every byte string in hexadecimal."""

    tx_id: str
    content_digest: str
    leaf_index: int
    tree_size: int
    path: list[str]
    notary_key: str
    signature: str


def statement(tree_size: int, root: bytes) -> bytes:
    """The bytes that the notary signs for a batch."""
    return RECEIPT_TAG + tree_size.to_bytes(4, "big") + root


def make_receipts(
    notarised: Sequence[tuple[bytes, bytes]], notary_key: bytes, sign: Callable[[bytes], bytes]
) -> list[Receipt]:
    """Receipts for a batch of (transaction id, content digest), in the batch's order, with one signature for all."""
    if not notarised:
        return []
    levels = tree_levels([leaf_hash(tx_id, digest) for tx_id, digest in notarised])
    size = len(notarised)
    signature = sign(statement(size, levels[-1][0]))
    return [
        Receipt(tx_id, digest, at, size, path, notary_key, signature)
        for at, ((tx_id, digest), path) in enumerate(zip(notarised, inclusion_paths(levels), strict=True))
    ]


def verify_receipt(
    receipt: Receipt, notary_key: bytes, holds: Callable[[bytes, bytes, bytes], bool] = signature_holds
) -> bool:
    """Whether the receipt proves, by this key, that the transaction was notarised with this content.

    `holds` checks a signature. To verify many receipts of few batches, pass a function that caches its results.
    """
    if receipt.notary_key != notary_key or receipt.tree_size >= 2**32:
        return False
    if len(receipt.tx_id) != TX_ID_BYTES or len(receipt.content_digest) != DIGEST_BYTES:
        return False  # the leaf hashes both concatenated: other lengths would move the border between them
    leaf = leaf_hash(receipt.tx_id, receipt.content_digest)
    root = root_from_path(leaf, receipt.leaf_index, receipt.tree_size, receipt.path)
    return root is not None and holds(notary_key, statement(receipt.tree_size, root), receipt.signature)


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
    )


def receipt_from_document(document: ReceiptDocument) -> Receipt:
    """The receipt in a JSON form. Raises BadRequest when a field is not hexadecimal of its length."""
    if len(document.path) > PATH_MAX:
        raise BadRequest(f"a receipt's path has at most {PATH_MAX} hashes")
    return Receipt(
        bytes_from_hex("tx_id", document.tx_id, TX_ID_BYTES),
        bytes_from_hex("content_digest", document.content_digest, DIGEST_BYTES),
        document.leaf_index,
        document.tree_size,
        tuple([bytes_from_hex("path", node, 32) for node in document.path]),
        bytes_from_hex("notary_key", document.notary_key, 32),
        bytes_from_hex("signature", document.signature, SIGNATURE_BYTES),
    )
