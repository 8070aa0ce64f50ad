"""Signatures: what is checked together is judged as libsodium judges it alone, by lanes or without."""

from __future__ import annotations

import os
from hashlib import sha512
from typing import NamedTuple

import pytest
from nacl.bindings import (
    crypto_core_ed25519_add,
    crypto_core_ed25519_scalar_add,
    crypto_core_ed25519_scalar_mul,
    crypto_core_ed25519_scalar_reduce,
    crypto_scalarmult_ed25519_base_noclamp,
)
from nacl.signing import SigningKey

from replica.native import lanes, signatures
from replica.native.lanes import LANES, Check
from replica.native.signatures import signatures_hold
from replica.notary.signatures import signature_holds

ORDER = 2**252 + 27742317777372353535851937790883648493
TORSION = bytes.fromhex("c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")  # a point of order 8
IDENTITY = b"\x01" + bytes(31)


@pytest.fixture(params=["lanes", "no lanes"])
def judged_by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With this machine's lanes, and as on a machine without."""
    if request.param == "no lanes":
        monkeypatch.setattr(signatures, "_lanes", lambda: None)
    elif not signatures.checks_together():
        pytest.skip("NOT TESTED: this machine has no lanes for signatures (AVX-512 IFMA, packages of extra `lanes`)")
    return str(request.param)


def signed(size: int = 200) -> Check:
    """A good signature by a new key."""
    key, message = SigningKey.generate(), os.urandom(size)
    return bytes(key.verify_key), message, key.sign(message).signature


class Signer(NamedTuple):
    """A key whose scalar is known, so that odd signatures can be made that fulfil the equation."""

    scalar: bytes
    public_key: bytes

    def sign(self, message: bytes, nonce: bytes, first: bytes, public_key: bytes = b"") -> Check:
        """A signature with this first half; `nonce * base` is what the equation wants it to be."""
        public_key = public_key or self.public_key
        challenge = crypto_core_ed25519_scalar_reduce(sha512(first + public_key + message).digest())
        scalar = crypto_core_ed25519_scalar_add(nonce, crypto_core_ed25519_scalar_mul(challenge, self.scalar))
        return public_key, message, first + scalar


def signer() -> Signer:
    scalar = crypto_core_ed25519_scalar_reduce(sha512(b"scalar").digest())
    return Signer(scalar, crypto_scalarmult_ed25519_base_noclamp(scalar))


def odd_ones() -> dict[str, Check]:
    """Signatures that verifiers are known to disagree on; all but the first are refused.

    Always the same ones: by one challenge in eight, a key of mixed order fulfils the equation after all.
    """
    one, message = signer(), b"a message"
    nonce = crypto_core_ed25519_scalar_reduce(sha512(b"nonce").digest())
    first = crypto_scalarmult_ed25519_base_noclamp(nonce)
    key, _, signature = plain = one.sign(message, nonce, first)
    above = (int.from_bytes(signature[32:], "little") + ORDER).to_bytes(32, "little")
    return {
        "plain": plain,
        "first half of mixed order": one.sign(message, nonce, crypto_core_ed25519_add(first, TORSION)),
        "key of mixed order": one.sign(message, nonce, first, crypto_core_ed25519_add(key, TORSION)),
        "key of small order": one.sign(message, nonce, first, TORSION),
        "key that is the identity": one.sign(message, nonce, first, IDENTITY),
        "first half that is the identity": one.sign(message, bytes(32), IDENTITY),
        "scalar above the order": (key, message, signature[:32] + above),
        "scalar of ones": (key, message, signature[:32] + b"\xff" * 32),
        "key that is no point": (b"\x02" + bytes(31), message, signature),
        "key above the field": (b"\xee" + b"\xff" * 30 + b"\x7f", message, signature),
        "all zeros": (bytes(32), message, bytes(64)),
        "short key": (key[:31], message, signature),
        "short signature": (key, message, signature[:63]),
        "long signature": (key, message, signature + b"\0"),
        "empty": (b"", b"", b""),
    }


@pytest.mark.parametrize("count", [0, 1, 2, LANES - 1, LANES, LANES + 1, 3 * LANES + 5])
def test_each_is_judged_in_its_place(judged_by: str, count: int) -> None:
    """Goal: no verdict is another one's. Method: each place bad once; messages of many lengths."""
    good = [signed(size) for size in range(count)]
    assert signatures_hold(good) == [True] * count
    for place in range(count):
        key, message, signature = good[place]
        for bad in ((key, message + b"x", signature), (key, message, signed()[2]), (signed()[0], message, signature)):
            checks = [*good[:place], bad, *good[place + 1 :]]
            assert signatures_hold(checks) == [at != place for at in range(count)]


@pytest.mark.parametrize("kind", odd_ones())
def test_odd_ones_are_judged_as_libsodium_does(judged_by: str, kind: str) -> None:
    """Goal: one notary, one verdict, and the one that auditors come to. Method: signatures that verifiers are known
    to disagree on, alone and among good ones."""
    odd = odd_ones()[kind]
    assert signature_holds(*odd) == (kind == "plain")
    assert signatures_hold([odd]) == [kind == "plain"]
    good = [signed() for _ in range(LANES - 1)]
    for place in range(LANES):
        checks = [*good[:place], odd, *good[place:]]
        assert signatures_hold(checks) == [at != place or kind == "plain" for at in range(LANES)]


@pytest.mark.parametrize("kind", ["key of mixed order", "scalar above the order", "first half that is the identity"])
def test_what_is_not_plain_stays_out_of_the_lanes(kind: str) -> None:
    """Goal: the lanes are trusted with the equation only. Method: what is more to it makes a check not plain."""
    assert signatures._is_plain(*odd_ones()["plain"])
    assert not signatures._is_plain(*odd_ones()[kind])


def test_lanes_that_do_not_tell_good_from_bad_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a library that does not work here accepts nothing. Method: lanes that find everything, or nothing, right;
    packages that are not there."""
    for answer in (True, False):
        monkeypatch.setattr(lanes.Lanes, "hold", lambda self, checks, answer=answer: [answer] * len(checks))
        assert lanes.load_lanes() is None
    monkeypatch.setattr(lanes, "_LIBRARY", "libother.so")
    assert lanes.load_lanes() is None
