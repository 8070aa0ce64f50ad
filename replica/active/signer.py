"""One small interface to the notary's signing key."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from replica.notary.errors import ConfigError, SignerUnavailable
from replica.notary.secret_files import check_secret
from replica.notary.signatures import Algorithm, notary_signature_holds
from replica.settings import KmsSettings, Pkcs11Settings


class Signer(Protocol):
    """Signs what the notary certifies."""

    @property
    def public_key(self) -> bytes:
        """The raw public key: 32 bytes of Ed25519, 65 of ECDSA P-256 (replica/notary/signatures.py)."""

    @property
    def blocks(self) -> bool:
        """Whether `sign` waits for another device: then it is called in a thread, one call at a time."""

    def sign(self, message: bytes) -> bytes:
        """The signature, 64 bytes: of Ed25519, or r and s of ECDSA P-256 with SHA-256. Raises SignerUnavailable."""


CHECKED = b"notary/signer-check/1"  # no receipt's statement begins like this


def check_signer(signer: Signer) -> None:
    """Sign a text that certifies nothing. Raises SignerUnavailable when signing fails, or does not verify."""
    if not notary_signature_holds(signer.public_key, CHECKED, signer.sign(CHECKED)):
        raise SignerUnavailable("a signature of the notary's key does not verify: its two halves are not of one pair")


class FileSigner:
    """An Ed25519 key from a PKCS#8 PEM file."""

    blocks = False

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Sign with the key in memory."""
        return self._key.sign(message)


class P256FileSigner:
    """An ECDSA key of P-256 from a PKCS#8 PEM file."""

    blocks = False

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public_key = _point(key)

    def sign(self, message: bytes) -> bytes:
        """Sign with the key in memory. No random number takes part (RFC 6979): a poor one would give the key away."""
        r, s = decode_dss_signature(self._key.sign(message, ec.ECDSA(hashes.SHA256(), deterministic_signing=True)))
        return r.to_bytes(32, "big") + s.to_bytes(32, "big")


OPEN_MAX_S = 30.0  # longest wait for a token or service at a start; it signs later within `core.sign_max_s`


def open_signer(where: Path | Pkcs11Settings | KmsSettings, open_max_s: float = OPEN_MAX_S) -> Signer:
    """The notary's key, from a file, a token or a key management service. Raises ConfigError, and SignerUnavailable.

    It gives a token or service that does not answer up after `open_max_s` seconds.
    """
    if isinstance(where, Path):
        return load_notary_signer(where)
    if isinstance(where, KmsSettings):
        from replica.active.kms import KmsSigner  # both with a library that most installations do without

        return _within(open_max_s, partial(KmsSigner, where))
    from replica.active.pkcs11 import Pkcs11Signer

    return _within(open_max_s, partial(Pkcs11Signer, where))


def _within(wait_max_s: float, opened: Callable[[], Signer]) -> Signer:
    """What `opened` returns or raises, in a thread that keeps no process from ending. Raises SignerUnavailable."""
    found: Future[Signer] = Future()

    def open_it() -> None:
        try:
            found.set_result(opened())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=open_it, name="signer", daemon=True).start()
    try:
        return found.result(wait_max_s)
    except TimeoutError:
        raise SignerUnavailable(f"the notary's key gave no answer within {wait_max_s:g} s") from None


def load_signer(path: Path) -> FileSigner:
    """The Ed25519 key in a file. Raises ConfigError when it is missing, of another kind, or can be read by others."""
    key = _read_key(path)
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds no Ed25519 key")
    return FileSigner(key)


def load_notary_signer(path: Path) -> FileSigner | P256FileSigner:
    """The key in a file, which may be of P-256 as well. Raises ConfigError as load_signer does."""
    key = _read_key(path)
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP256R1):
        return P256FileSigner(key)
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds no Ed25519 key, and none of P-256")
    return FileSigner(key)


def _read_key(path: Path) -> object:
    check_secret(path)
    try:
        return serialization.load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"the notary's key {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} holds no usable private key: {error}") from None


def _point(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)


def create_key(path: Path, algorithm: Algorithm = "ed25519") -> bytes:
    """Make a new key as PKCS#8 PEM, mode 0600, and return its raw public key. Never overwrites a file."""
    key = Ed25519PrivateKey.generate() if algorithm == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; a notary key is never overwritten") from None
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
    return key.public_key().public_bytes_raw() if isinstance(key, Ed25519PrivateKey) else _point(key)
