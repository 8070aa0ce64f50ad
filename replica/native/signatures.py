"""Checks many Ed25519 signatures together, which costs a fraction of checking them one at a time.

Where the processor and the packages allow it (extra `lanes`), Intel's multi-buffer library checks eight in the time of
two (lanes.py). The verdicts are those of libsodium. The library checks only the equation; this module checks the other
requirements, and leaves every signature that is not plain to libsodium.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

from nacl.bindings import crypto_core_ed25519_is_valid_point

from replica.native.lanes import LANES, Check, Lanes, load_lanes
from replica.notary.requests import PUBLIC_KEY_BYTES, SIGNATURE_BYTES
from replica.notary.signatures import signature_holds

_WORTH = 2  # from this number on, the lanes take less time than single checks
_KEYS_KEPT = 65_536
_SCALAR_TOP = 63  # the place of the scalar's highest byte
_SCALAR_TOP_SURE = 16  # below it, the scalar is below the group's order; at it, only one in 2**124 is
_IDENTITY = b"\x01" + bytes(31)


def signatures_hold(checks: Sequence[Check]) -> list[bool]:
    """`signature_holds` of each (public key, message, signature)."""
    lanes = _lanes()
    if lanes is None or len(checks) < _WORTH:
        return [signature_holds(*check) for check in checks]
    plain = [place for place, check in enumerate(checks) if _is_plain(*check)]
    held = set[int]()
    for start in range(0, len(plain) - _WORTH + 1, LANES):
        places = plain[start : start + LANES]
        held.update(
            place for place, holds in zip(places, lanes.hold([checks[at] for at in places]), strict=True) if holds
        )
    return [place in held or signature_holds(*check) for place, check in enumerate(checks)]


def checks_together() -> bool:
    """Whether this machine checks many signatures in less time than the same number of single checks."""
    return _lanes() is not None


def _is_plain(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether only the equation is left to check: `scalar * base - hash * key`, encoded, is the signature's first half.

    libsodium also requires a scalar below the group's order, and that neither the key nor the first half has small
    order. If the key is in the prime-order group, so is the left side; its only element of small order is the identity.
    """
    return (
        len(public_key) == PUBLIC_KEY_BYTES
        and len(signature) == SIGNATURE_BYTES
        and signature[_SCALAR_TOP] < _SCALAR_TOP_SURE
        and not signature.startswith(_IDENTITY)
        and _is_in_prime_order_group(public_key)
    )


@lru_cache(_KEYS_KEPT)
def _is_in_prime_order_group(public_key: bytes) -> bool:
    return crypto_core_ed25519_is_valid_point(public_key)


@cache
def _lanes() -> Lanes | None:
    return load_lanes()
