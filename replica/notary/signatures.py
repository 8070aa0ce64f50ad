"""Whether an Ed25519 signature holds, as libsodium judges it. Many together: replica/native/signatures.py."""

from __future__ import annotations

from nacl.bindings import crypto_sign_open
from nacl.exceptions import BadSignatureError

from replica.notary.requests import PUBLIC_KEY_BYTES, SIGNATURE_BYTES


def signature_holds(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether an Ed25519 signature is the key's over the message; False for a malformed key or signature too."""
    if len(public_key) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:  # the function behind VerifyKey.verify: a key object for each signature takes 5 % more
        crypto_sign_open(signature + message, public_key)
    except BadSignatureError:
        return False
    return True
