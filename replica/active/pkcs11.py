"""The notary's signing key on a PKCS#11 token: it never leaves the token, which signs with it.

Ed25519 is the mechanism CKM_EDDSA of PKCS#11 3.0; ECDSA P-256 is CKM_ECDSA, which is given the SHA-256. The token may
restart or fail over; the next signature then opens a new session. A refused PIN is not tried again: tokens lock
themselves after a few refusals.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Any

from replica.notary.errors import ConfigError, SignerUnavailable
from replica.notary.requests import PUBLIC_KEY_BYTES
from replica.notary.secret_files import read_secret
from replica.notary.signatures import P256_KEY_BYTES, Algorithm, algorithm_of
from replica.settings import Pkcs11Settings

try:
    import pkcs11
    from pkcs11 import Attribute, KeyType, Mechanism, ObjectClass
    from pkcs11.exceptions import (
        MultipleObjectsReturned,
        NoSuchKey,
        NoSuchToken,
        PinExpired,
        PinIncorrect,
        PinInvalid,
        PinLenRange,
        PinLocked,
        PKCS11Error,
    )
    from pkcs11.util.ec import encode_named_curve_parameters
except ImportError:
    raise ConfigError("a key on a token needs the extra: pip install 'replicated-notary[pkcs11]'") from None

_ED25519, _P256 = encode_named_curve_parameters("1.3.101.112"), encode_named_curve_parameters("1.2.840.10045.3.1.7")
_OCTET_STRING = 4  # DER's tag; most tokens put it, and the length, before the point
_PIN_REFUSED = (PinExpired, PinIncorrect, PinInvalid, PinLenRange, PinLocked)


class Pkcs11Signer:
    """Signs on the token. One signature at a time; may be used from any thread."""

    blocks = True

    def __init__(self, settings: Pkcs11Settings) -> None:
        """Open a session and find the key pair. Raises ConfigError, and SignerUnavailable when that may pass."""
        self._settings = settings
        self._turn = threading.Lock()
        self._refused: ConfigError | None = None
        self._session: Any = None
        self._key: Any = None
        self.public_key = self._in_new_session(lambda public_key: public_key)

    def sign(self, message: bytes) -> bytes:
        """Sign on the token, over a new session if the old one is gone. Raises SignerUnavailable."""

        def signature(public_key: bytes) -> bytes:
            if public_key != self.public_key:
                raise SignerUnavailable("the token has another key under this label than before")
            if algorithm_of(public_key) == "p256":
                return bytes(self._key.sign(sha256(message).digest(), mechanism=Mechanism.ECDSA))
            return bytes(self._key.sign(message, mechanism=Mechanism.EDDSA))

        with self._turn:
            if self._key is not None:
                try:
                    return signature(self.public_key)
                except PKCS11Error:
                    self._close()  # whatever the error: a new session shows whether the token works
            try:
                return self._in_new_session(signature)
            except ConfigError as error:
                raise SignerUnavailable(error.detail) from None
            except PKCS11Error as error:
                self._close()
                raise SignerUnavailable(f"the token does not sign: {_words(error)}") from None

    def close(self) -> None:
        """End the session. May be repeated; the next signature opens another."""
        with self._turn:
            self._close()

    def _in_new_session(self, work: Callable[[bytes], bytes]) -> bytes:
        """What `work` makes of the public key, once a session is open and has both keys.

        If that fails, once more with the module initialised anew: tokens that came back may stay invisible otherwise.
        Not at once: C_Finalize may wait for the device, and the binding holds the interpreter's lock meanwhile, so that
        a silent device would stop the event loop. What failed with an answer is not silent.
        """
        try:
            return work(self._open(anew=False))
        except PinRefused:
            raise
        except (PKCS11Error, ConfigError, SignerUnavailable):
            self._close()
            return work(self._open(anew=True))

    def _open(self, *, anew: bool) -> bytes:
        """The public key's bytes. `anew`: initialise the module first."""
        if self._refused is not None:
            raise self._refused
        settings = self._settings
        try:
            self._session = open_session(settings, anew=anew)
            self._key, public = _pair(self._session, settings.key_label)
            return _raw(public)
        except PinRefused as error:
            self._refused = error
            raise
        except NoSuchKey:
            self._close()
            raise ConfigError(f"the token has no Ed25519 or P-256 key pair {settings.key_label!r}") from None
        except MultipleObjectsReturned:
            self._close()
            raise ConfigError(f"the token has several keys {settings.key_label!r}") from None
        except PKCS11Error as error:
            self._close()
            raise SignerUnavailable(f"the token's key cannot be read: {_words(error)}") from None

    def _close(self) -> None:
        session, self._session, self._key = self._session, None, None
        if session is not None:
            with suppress(PKCS11Error):  # the session is gone already
                session.close()


class PinRefused(ConfigError):
    """The token does not take the PIN. Trying again may lock it."""


def create_token_key(settings: Pkcs11Settings, algorithm: Algorithm = "ed25519") -> bytes:
    """Make a key pair on the token, which never gives the private half away; returns the public key.

    Raises ConfigError when there is a key of that label already, or the token cannot make one, and SignerUnavailable.
    """
    session = open_session(settings, writable=True)
    try:
        if any(session.get_objects({Attribute.LABEL: settings.key_label})):
            raise ConfigError(f"the token has {settings.key_label!r} already; a notary key is never overwritten")
        kind, named, made_by = (
            (KeyType.EC_EDWARDS, _ED25519, Mechanism.EC_EDWARDS_KEY_PAIR_GEN)
            if algorithm == "ed25519"
            else (KeyType.EC, _P256, Mechanism.EC_KEY_PAIR_GEN)
        )
        curve = session.create_domain_parameters(kind, {Attribute.EC_PARAMS: named}, local=True)
        secret = {Attribute.SENSITIVE: True, Attribute.EXTRACTABLE: False, Attribute.SIGN: True}
        public, _ = curve.generate_keypair(
            mechanism=made_by,
            label=settings.key_label,
            store=True,
            private_template=secret,
        )
        return _raw(public)
    except PKCS11Error as error:
        raise ConfigError(f"the token makes no {algorithm} key pair: {_words(error)}") from None
    finally:
        session.close()


def open_session(settings: Pkcs11Settings, *, writable: bool = False, anew: bool = True) -> Any:
    """A session of the user's. `anew`: initialise the module first, which ends all other sessions with the token.

    Raises ConfigError: no such module or token, PIN refused; and SignerUnavailable.
    """
    pin = read_secret(settings.pin_file).strip()
    try:
        library = pkcs11.lib(str(settings.module))
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{settings.module} is no PKCS#11 module: {error}") from None
    try:
        if anew:
            library.reinitialize()
        token = library.get_token(token_label=settings.token_label)
        return token.open(rw=writable, user_pin=pin)
    except NoSuchToken:
        raise SignerUnavailable(f"there is no token {settings.token_label!r}") from None
    except _PIN_REFUSED as error:
        raise PinRefused(f"the token does not take the PIN in {settings.pin_file}: {_words(error)}") from None
    except PKCS11Error as error:
        raise SignerUnavailable(f"the token cannot be opened: {_words(error)}") from None


def _pair(session: Any, label: str) -> tuple[Any, Any]:
    """The private and the public half. Raises NoSuchKey, and MultipleObjectsReturned where the label is not one pair's.

    By kind, not by label alone: a token may keep other things, such as a wrapping key, under the same label.
    """
    found = []
    for key_type in (KeyType.EC_EDWARDS, KeyType.EC):
        about = {"label": label, "key_type": key_type}
        with suppress(NoSuchKey):
            private = session.get_key(object_class=ObjectClass.PRIVATE_KEY, **about)
            found.append((private, session.get_key(object_class=ObjectClass.PUBLIC_KEY, **about)))
    if not found:
        raise NoSuchKey
    if len(found) > 1:
        raise MultipleObjectsReturned
    return found[0]


def _raw(public: Any) -> bytes:
    """The bytes of a public key. Raises ConfigError unless it is of Ed25519 or P-256."""
    point, size = bytes(public[Attribute.EC_POINT]), PUBLIC_KEY_BYTES
    if public[Attribute.KEY_TYPE] == KeyType.EC:
        size = P256_KEY_BYTES if bytes(public[Attribute.EC_PARAMS]) == _P256 else 0
    raw = point.removeprefix(bytes([_OCTET_STRING, size])) if len(point) > size else point
    if len(raw) != size:
        raise ConfigError("the public key on the token is neither Ed25519 nor P-256")
    return raw


def _words(error: Exception) -> str:
    return " ".join([type(error).__name__, *map(str, error.args)])
