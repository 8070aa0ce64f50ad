"""Tokens: JSON Web Tokens with an asymmetric signature, and the rights that their claims grant.

    {"sub": "treasury", "aud": "notary", "exp": 1800000000,
     "notary": {"act_as": ["O=Bank A,L=London,C=GB"], "read_as": ["O=Bank B,L=Paris,C=FR"], "admin": false}}

`sub` is the user. `act_as` and `read_as` name parties; `"admin": true` reads everything. Nothing is granted by default.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import load_pem_x509_certificate
from joserfc import jws, jwt
from joserfc.errors import BadSignatureError, InvalidKeyIdError, JoseError
from joserfc.jwk import Key, KeySet, import_key

from ledger_api.server.authorisation import Caller, Revocations
from ledger_api.server.settings import TokenSettings
from replica.notary.codes import Code
from replica.notary.errors import BadRequest, ConfigError
from replica.notary.one_value import check_keys
from replica.notary.requests import check_user_id
from replica.notary.secret_files import check_trusted
from replica.notary.untrusted import read_bounded

KEYS_MAX = 100
KEY_TYPES = frozenset({"RSA", "EC", "OKP"})
RSA_BITS_MIN = 2_048
TOKEN_MAX_CHARACTERS = 8_192
REVOKED_MAX_BYTES = 16 * 2**20  # some 400,000 ids of the usual size
EXPIRES_MAX_S = 2**40  # Unix time, some 35,000 years from now
TRIED_MAX = 8  # keys that a token which names none is checked by
_PARTIES_MAX = 1_000
_NOT_PUBLIC = "a symmetric or private key: tokens are checked with public keys only"
_RSA = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_KINDS: dict[object, tuple[str, tuple[str | None, ...]]] = dict.fromkeys(_RSA, ("RSA", (None,))) | {
    "ES256": ("EC", ("P-256",)),
    "ES384": ("EC", ("P-384",)),
    "ES512": ("EC", ("P-521",)),
    "EdDSA": ("OKP", ("Ed25519", "Ed448")),
}  # kind and curves of the keys that sign by an algorithm
_log = structlog.get_logger(__name__)


class TokenRefused(BadRequest):
    """The token is not valid; nothing was done."""

    default_code = Code.TOKEN_INVALID


class KeyUnknown(TokenRefused):
    """The token is signed by an unknown key, which may have been published a moment ago."""


class Rights(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The claim that grants."""

    act_as: Annotated[list[str], msgspec.Meta(max_length=_PARTIES_MAX)] = []
    read_as: Annotated[list[str], msgspec.Meta(max_length=_PARTIES_MAX)] = []
    admin: bool = False


def read_keys(path: Path) -> KeySet:
    """The public keys in a file: a JWKS, or one key or certificate in PEM. Raises ConfigError."""
    try:
        check_trusted(path)
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(f"the tokens' keys in {path} cannot be read: {error}") from None
    return parse_keys(text, str(path))


def parse_keys(text: str, origin: str) -> KeySet:
    """The public keys in a JWKS or PEM.

    An issuer may publish keys for others beside ours: one that is not understood, or may not be used here, is left out
    with a warning. Raises ConfigError where none is left, and for too many.
    """
    try:
        documents = _documents(text)
    except (ValueError, AttributeError, RecursionError, BadRequest) as error:
        raise ConfigError(f"{origin} holds no keys for tokens: {error}") from None
    if len(documents) > KEYS_MAX:
        raise ConfigError(f"{origin} holds {len(documents)} keys for tokens; 1 to {KEYS_MAX} are taken")
    keys, unusable = list[Key](), list[str]()
    for place, document in enumerate(documents):
        try:
            keys.append(_usable(document))
        except Exception as error:  # of any kind: the library has not foreseen everything that may be published
            unusable.append(f"key {place}: {error}")
    if not keys:
        raise ConfigError(f"{origin} holds no keys for tokens: {'; '.join(unusable) or 'it is empty'}")
    if unusable:
        _log.warning("token_keys_left_out", origin=origin, keys=len(unusable), detail="; ".join(unusable)[:1_000])
    return KeySet(keys)


def _documents(text: str) -> list[Any]:
    """The keys of a JWKS, or the one PEM. Raises ValueError, AttributeError, RecursionError and BadRequest."""
    if not text.lstrip().startswith("{"):
        return [text.encode()]
    check_keys(text.encode())
    documents = json.loads(text).get("keys")
    if not isinstance(documents, list):
        raise ValueError("a JWKS has a list of keys")
    return documents


def _usable(document: Any) -> Key:
    """A key that tokens are checked with. Raises ValueError, and what the library raises for what is no key."""
    key = _key_from_pem(document) if isinstance(document, bytes) else _key_from_document(document)
    if key.key_type not in KEY_TYPES or key.is_private:
        raise ValueError(_NOT_PUBLIC)
    raw = key.raw_value
    if isinstance(raw, RSAPublicKey) and raw.key_size < RSA_BITS_MIN:
        raise ValueError(f"an RSA key of less than {RSA_BITS_MIN} bits")
    if key.get("use", "sig") != "sig":
        raise ValueError(f"a key whose use is {key.get('use')}")
    return key


def read_revoked(path: Path) -> frozenset[str]:
    """The ids (`jti`) in a file, one a line; empty lines and those with `#` in front count for nothing.

    Raises ConfigError.
    """
    try:
        check_trusted(path)
        lines = [line.strip() for line in read_bounded(path, REVOKED_MAX_BYTES).decode().splitlines()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"the revoked tokens in {path} cannot be read: {error}") from None
    except BadRequest as error:
        raise ConfigError(error.detail) from None
    return frozenset(line for line in lines if line and not line.startswith("#"))


def check_token(
    token: str, keys: KeySet, settings: TokenSettings, now_s: float, revocations: Revocations | None = None
) -> Caller:
    """The caller that a token identifies. Raises TokenRefused; KeyUnknown when newer keys may verify it."""
    if len(token) > TOKEN_MAX_CHARACTERS:
        raise TokenRefused(f"a token has at most {TOKEN_MAX_CHARACTERS} characters")
    try:
        decoded = _decoded(token, keys, settings.algorithms.split(","))
        _registry(settings, now_s).validate(decoded.claims)
    except InvalidKeyIdError:
        raise KeyUnknown("the token is signed by a key that is not known here") from None
    except Exception as error:  # of any kind: a stranger chose the bytes, and the library has not foreseen them all
        raise TokenRefused(f"the token is not accepted: {error}") from None
    return _caller(decoded.claims, settings, revocations)


def _decoded(token: str, keys: KeySet, algorithms: list[str]) -> jwt.Token:
    """The token by the key that it names, else by one of those that fit. Raises the library's errors.

    A token that names no key costs a few checks at most.
    """
    headers = jws.extract_compact(token.encode()).headers()
    if "kid" in headers:
        return jwt.decode(token, keys, algorithms=algorithms)
    for key in [key for key in keys.keys if _fits(key, headers.get("alg"))][:TRIED_MAX]:
        try:
            return jwt.decode(token, key, algorithms=algorithms)
        except BadSignatureError:
            continue
    raise InvalidKeyIdError("the token names no key, and none that fits has signed it")


def _fits(key: Key, algorithm: object) -> bool:
    """Whether a key may have signed by this algorithm."""
    kind, curves = _KINDS.get(algorithm, ("", ())) if isinstance(algorithm, str) else ("", ())
    published = key.as_dict(private=False)
    return key.key_type == kind and published.get("alg", algorithm) == algorithm and published.get("crv") in curves


def token_in(header: str | None) -> str:
    """The token in an Authorization header. Raises BadRequest: TOKEN_MISSING."""
    scheme, _, token = (header or "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise BadRequest("the call has no `Authorization: Bearer` header", Code.TOKEN_MISSING)
    return token.strip()


def _key_from_document(document: dict[str, Any]) -> Key:
    """The key in a JWK. Its kind is checked first: a key of a refused kind is not parsed."""
    kind = document.get("kty")
    if kind == "oct":
        raise ValueError(_NOT_PUBLIC)
    if kind not in KEY_TYPES:
        raise ValueError(f"kty is {str(kind)[:40]!r}, not RSA, EC or OKP")
    key: Key = import_key(document, kind)
    return key


def _key_from_pem(pem: bytes) -> Key:
    """The key in a PEM; of a certificate, its key. Raises ValueError or TypeError."""
    if b"BEGIN CERTIFICATE" in pem:
        public = load_pem_x509_certificate(pem).public_key()
        pem = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for kind in ("RSA", "EC", "OKP"):
        try:
            return import_key(pem, kind)
        except (JoseError, ValueError, TypeError):
            continue
    raise ValueError("not a public key or certificate in PEM, RSA, EC or EdDSA")


def _registry(settings: TokenSettings, now_s: float) -> jwt.JWTClaimsRegistry:
    options: dict[str, Any] = {"exp": {"essential": True}, "sub": {"essential": True}}
    if settings.audience is not None:
        options["aud"] = {"essential": True, "value": settings.audience}
    if settings.issuer is not None:
        options["iss"] = {"essential": True, "value": settings.issuer}
    return jwt.JWTClaimsRegistry(now=int(now_s), leeway=int(settings.leeway_s), **options)


def _caller(claims: Mapping[str, Any], settings: TokenSettings, revocations: Revocations | None) -> Caller:
    scopes = claims.get("scope", "")
    if settings.scope is not None and not (isinstance(scopes, str) and settings.scope in scopes.split()):
        raise TokenRefused(f"the token has not the scope {settings.scope!r}")
    subject, expires_at_s = claims["sub"], claims["exp"]
    if expires_at_s >= EXPIRES_MAX_S:  # numbers in JSON are unbounded, floats are not
        raise TokenRefused("the token's expiry is no time")
    try:
        check_user_id(subject)  # submissions carry it
    except BadRequest as error:
        raise TokenRefused(f"the token's subject: {error.detail}") from None
    try:
        rights = msgspec.convert(claims.get(settings.rights_claim, {}), Rights)
    except msgspec.ValidationError as error:
        raise TokenRefused(f"the token's claim {settings.rights_claim!r}: {error}") from None
    token_id = "" if revocations is None else _token_id(claims, revocations)
    act_as = frozenset(rights.act_as)
    return Caller(
        subject=subject,
        act_as=act_as,
        user_id=None if rights.admin else subject,
        read_as=None if rights.admin else act_as | frozenset(rights.read_as),
        expires_at_s=float(expires_at_s) + settings.leeway_s,
        token_id=token_id,
        revocations=revocations,
    )


def _token_id(claims: Mapping[str, Any], revocations: Revocations) -> str:
    """The token's id. A token without one could never be revoked, so it is refused where revoked ones are listed."""
    token_id = claims.get("jti")
    if not isinstance(token_id, str) or not token_id:
        raise TokenRefused("the token has no id (`jti`), by which it could be revoked")
    if token_id in revocations:
        raise TokenRefused("the token was revoked")
    return token_id
