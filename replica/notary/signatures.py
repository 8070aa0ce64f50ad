"""Whether a signature holds. Parties, operators and archives sign with Ed25519; the notary with Ed25519 or ECDSA P-256.

A key of the notary's says its algorithm: 32 bytes are Ed25519; 65 bytes, of which the first is 4, are a point of P-256
as SEC 1 has it, uncompressed. Many of Ed25519 together: replica/native/signatures.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Literal

from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from replica.notary.errors import BadRequest
from replica.notary.requests import PUBLIC_KEY_BYTES, SIGNATURE_BYTES
from replica.notary.texts import bytes_from_hex

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

P256_KEY_BYTES = 65
P256_KEY_TAG = b"\x04"  # SEC 1: a point with both its coordinates
NOTARY_KEY_PATTERN = "^([0-9a-f]{64}|04[0-9a-f]{128})$"
_P256_NUMBER_BYTES = SIGNATURE_BYTES // 2  # a signature is r and s, each of 32 bytes
_KEYS_KEPT = 64

Algorithm = Literal["ed25519", "p256"]
SCHEMES: dict[Algorithm, str] = {"ed25519": "ed25519", "p256": "ecdsa-p256-sha256"}


def algorithm_of(notary_key: bytes) -> Algorithm:
    """Which algorithm a key of the notary's belongs to."""
    return "p256" if len(notary_key) == P256_KEY_BYTES else "ed25519"


def notary_key_from_hex(name: str, text: str) -> bytes:
    """A public key of the notary's from its hexadecimal digits. Raises BadRequest naming the field."""
    try:
        if len(text) != 2 * P256_KEY_BYTES:
            return bytes_from_hex(name, text, PUBLIC_KEY_BYTES)
        raw = bytes_from_hex(name, text, P256_KEY_BYTES)
        _p256_key(raw)
    except (BadRequest, ValueError):
        raise BadRequest(
            f"{name} is {2 * PUBLIC_KEY_BYTES} hexadecimal digits (Ed25519), or {2 * P256_KEY_BYTES} (a point of P-256)"
        ) from None
    return raw


def notary_signature_holds(notary_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether a signature is the notary's, by the key's own algorithm; False for what is malformed too."""
    if len(notary_key) != P256_KEY_BYTES:
        return signature_holds(notary_key, message, signature)
    if len(signature) != SIGNATURE_BYTES:
        return False
    # imported here: most processes never see such a key
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    r, s = (int.from_bytes(part, "big") for part in (signature[:_P256_NUMBER_BYTES], signature[_P256_NUMBER_BYTES:]))
    try:
        _p256_key(notary_key).verify(encode_dss_signature(r, s), message, ECDSA(SHA256()))
    except (InvalidSignature, ValueError):
        return False
    return True


def signature_holds(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether an Ed25519 signature is the key's over the message; False for a malformed key or signature too."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:  # the function behind VerifyKey.verify: a key object for each signature takes 5 % more
        crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True


@lru_cache(_KEYS_KEPT)
def _p256_key(raw: bytes) -> EllipticCurvePublicKey:
    """Raises ValueError for what is no point of the curve."""
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey

    if not raw.startswith(P256_KEY_TAG):
        raise ValueError("no point with both its coordinates")
    return EllipticCurvePublicKey.from_encoded_point(SECP256R1(), raw)
