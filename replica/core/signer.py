"""The notary's signing key behind one small interface."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from replica.notary.errors import Code, ConfigError


class Signer(Protocol):
    """Signs what the notary certifies."""

    @property
    def public_key(self) -> bytes:
        """The raw Ed25519 public key, 32 bytes."""

    def sign(self, message: bytes) -> bytes:
        """The Ed25519 signature, 64 bytes."""


class FileSigner:
    """An Ed25519 key from a PKCS#8 PEM file."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """Sign with the key in memory."""
        return self._key.sign(message)


def load_signer(path: Path) -> FileSigner:
    """The key in a file. Raises ConfigError when it is missing, not Ed25519 in PKCS#8, or can be read by others."""
    try:
        mode = path.stat().st_mode
        pem = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"the notary's key {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise ConfigError(f"{path} has mode {stat.S_IMODE(mode):04o}, it must be 0600", Code.KEY_UNSAFE)
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path} holds no usable private key: {error}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds no Ed25519 key")
    return FileSigner(key)


def create_key(path: Path) -> bytes:
    """Make a new Ed25519 key as PKCS#8 PEM, mode 0600, and return its raw public key. Never overwrites a file."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{path} exists already; a notary key is never overwritten") from None
    with os.fdopen(handle, "wb") as file:
        file.write(pem)
    return key.public_key().public_bytes_raw()
