"""Checkpoints, COSE receipts and receipts of a batch of docs/format-1.0.md."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

from tests.golden.format_1_0.tree import root_of

Sign = Callable[[bytes], bytes]
EDDSA, ES256 = -8, -7


def checkpoint(origin: str, size: int, root: bytes, key: bytes, sign: Sign) -> str:
    """A signed note. `key`: type ‖ public key, Ed25519."""
    text = f"{origin}\n{size}\n{b64encode(root).decode()}\n"
    key_id = sha256(origin.encode() + b"\n" + key).digest()[:4]
    return f"{text}\n\N{EM DASH} {origin} {b64encode(key_id + sign(text.encode())).decode()}\n"


def protected_header(origin: str, size: int, key: bytes) -> dict[int, Any]:
    """What a COSE receipt says besides its proof."""
    algorithm = EDDSA if key[0] == 1 else ES256
    return {1: algorithm, 4: sha256(key).digest(), 15: {1: origin}, 395: 1, -65_537: size}


def cose_receipt(protected: Mapping[int, Any], leaves: Sequence[bytes], index: int, sign: Sign) -> bytes:
    """A COSE receipt for the leaf hash at `index`."""
    header = cbor(protected)
    signature = sign(cbor(["Signature1", header, b"", root_of(leaves)]))
    proof = cbor([len(leaves), index, path(leaves, index)])
    return b"\xd2" + cbor([header, {396: {-1: [proof]}}, None, signature])


def batch_receipt(ledger_id: bytes, leaves: Sequence[bytes], index: int, key: bytes, sign: Sign) -> dict[str, Any]:
    """A receipt for the leaf at `index` of a batch, as JSON."""
    hashes = [sha256(b"\0" + leaf).digest() for leaf in leaves]
    signed = b"notary/receipt/3" + ledger_id + len(leaves).to_bytes(4, "big") + root_of(hashes)
    return {
        "version": 3,
        "ledger_id": ledger_id.hex(),
        "leaf": leaves[index].hex(),
        "leaf_index": index,
        "tree_size": len(leaves),
        "path": [one.hex() for one in path(hashes, index)],
        "notary_key": key.hex(),
        "signature": sign(signed).hex(),
    }


def path(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The inclusion proof of RFC 9162, the leaf's sibling first."""
    if len(leaves) == 1:
        return []
    split = 1 << (len(leaves) - 1).bit_length() - 1
    if index < split:
        return [*path(leaves[:split], index), root_of(leaves[split:])]
    return [*path(leaves[split:], index - split), root_of(leaves[:split])]


def cbor(value: Any) -> bytes:
    """Deterministic CBOR of nil, integers, texts, byte strings, lists, and maps in the order given."""
    if value is None:
        return b"\xf6"
    if isinstance(value, int):
        return _head(0, value) if value >= 0 else _head(1, -1 - value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    if isinstance(value, Mapping):
        return _head(5, len(value)) + b"".join(cbor(key) + cbor(one) for key, one in value.items())
    return _head(4, len(value)) + b"".join(map(cbor, value))


def _head(major: int, value: int) -> bytes:
    if value < 24:
        return bytes([major << 5 | value])
    for more, length in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if value < 1 << 8 * length:
            return bytes([major << 5 | more]) + value.to_bytes(length, "big")
    raise ValueError(f"{value} has more than 64 bits")
