"""The notary's signing key in a key management service that speaks AWS KMS' protocol: the key never leaves the service.

ECDSA P-256 alone: the service is given the SHA-256 of what is signed. botocore signs the requests, tries a failed one
again, and finds the credentials where AWS' tools do: environment, shared file, the machine's role.
"""

from __future__ import annotations

import ssl
from hashlib import sha256
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from replica.notary.codes import Code
from replica.notary.errors import ConfigError, SignerUnavailable
from replica.notary.requests import SIGNATURE_BYTES
from replica.notary.signatures import notary_signature_holds
from replica.settings import KmsSettings

try:
    import botocore.session
    from botocore.config import Config
    from botocore.exceptions import (
        ClientError,
        CredentialRetrievalError,
        NoAuthTokenError,
        NoCredentialsError,
        PartialCredentialsError,
        SSLError,
        TokenRetrievalError,
        UnauthorizedSSOTokenError,
    )
except ImportError:
    raise ConfigError("a key in a KMS needs the extra: pip install 'replicated-notary[kms]'") from None

_NUMBER_BYTES = SIGNATURE_BYTES // 2  # r and s
_ATTEMPTS_MAX = 2
_WORDS_MAX = 300
_USAGE = "SIGN_VERIFY"
_A_SETTING = (
    frozenset(  # what does not pass by itself: https://docs.aws.amazon.com/kms/latest/APIReference/API_Sign.html
        {
            "InvalidArnException",
            "InvalidKeyUsageException",
            "NotFoundException",
            "UnsupportedOperationException",
            "ValidationException",
        }
    )
)
_UNAUTHORISED = (401, 403)
_CREDENTIALS = (  # https://docs.aws.amazon.com/kms/latest/APIReference/CommonErrors.html
    frozenset(
        {
            "AccessDenied",
            "AccessDeniedException",
            "ExpiredToken",
            "ExpiredTokenException",
            "IncompleteSignature",
            "IncompleteSignatureException",
            "InvalidClientTokenId",
            "InvalidSignatureException",
            "MissingAuthenticationToken",
            "MissingAuthenticationTokenException",
            "NotAuthorized",
            "OptInRequired",
            "RequestExpired",
            "SignatureDoesNotMatch",
            "UnrecognizedClientException",
        }
    )
)
_NO_CREDENTIALS = (
    CredentialRetrievalError,
    NoAuthTokenError,
    NoCredentialsError,
    PartialCredentialsError,
    TokenRetrievalError,
    UnauthorizedSSOTokenError,
)


class KmsSigner:
    """Signs in the service. May be used from any thread."""

    blocks = True

    def __init__(self, settings: KmsSettings) -> None:
        """Fetch the public key. Raises ConfigError, and SignerUnavailable when that may pass."""
        self._settings = settings
        self._client: Any = None
        answer = self._asked("get_public_key", KeyId=settings.key_id)
        self.public_key = point_of(answer.get("PublicKey"), settings.key_id)
        if answer.get("KeyUsage", _USAGE) != _USAGE:
            raise ConfigError(f"kms.key_id: {settings.key_id!r} is for {answer['KeyUsage']}, not for {_USAGE}")
        # an alias is looked up once: whoever gives it to another key changes nothing here before the next start
        self._key_id = answer.get("KeyId") or settings.key_id

    def sign(self, message: bytes) -> bytes:
        """Have the service sign. Raises SignerUnavailable, also when the signature is not the public key's."""
        try:
            answer = self._asked(
                "sign",
                KeyId=self._key_id,
                Message=sha256(message).digest(),
                MessageType="DIGEST",
                SigningAlgorithm="ECDSA_SHA_256",
            )
        except ConfigError as error:
            raise SignerUnavailable(error.detail) from None
        signature = r_and_s(answer.get("Signature"))
        if not notary_signature_holds(self.public_key, message, signature):
            raise SignerUnavailable("the service signed with another key than the one it showed at the start")
        return signature

    def _asked(self, operation: str, **parameters: object) -> dict[str, Any]:
        """The service's answer. Raises ConfigError and SignerUnavailable."""
        if self._client is None:
            self._client = _client(self._settings)
        try:
            return dict(getattr(self._client, operation)(**parameters))
        except Exception as error:  # the library has many
            failure = failure_of(error, operation)
            if failure.code is Code.SIGNER_ACCESS_DENIED:
                self._client = None  # the next one reads the files with credentials again
            raise failure from None


def failure_of(error: Exception, operation: str) -> ConfigError | SignerUnavailable:
    """What an error of the library means to an operator."""
    match error:
        case ClientError():
            told = f"the key management service refused {operation}: {_words(error)}"
            if _code(error) in _A_SETTING:
                return ConfigError(f"kms.key_id: {told}")
            unauthorised = _code(error) in _CREDENTIALS or _status(error) in _UNAUTHORISED
            return SignerUnavailable(told, Code.SIGNER_ACCESS_DENIED if unauthorised else None)
        case SSLError():
            told = "no trusted connection to the key management service; check kms.ca_file and kms.endpoint"
            return SignerUnavailable(f"{told}: {_words(error)}")
    if isinstance(error, _NO_CREDENTIALS):
        told = f"no credentials for the key management service: {_words(error)}"
        return SignerUnavailable(told, Code.SIGNER_ACCESS_DENIED)
    return SignerUnavailable(f"the key management service gave no answer: {_words(error)}")


def point_of(public_key: object, key_id: str) -> bytes:
    """A public key of P-256 as SEC 1 has it, from DER (SubjectPublicKeyInfo). Raises ConfigError for any other."""
    try:
        key = load_der_public_key(public_key)  # type: ignore[arg-type]
    except Exception:  # an unknown curve is no ValueError
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ConfigError(f"kms.key_id: {key_id!r} is no key of ECDSA P-256 (ECC_NIST_P256, {_USAGE})")
    return key.public_bytes(Encoding.X962, PublicFormat.UncompressedPoint)


def r_and_s(der: object) -> bytes:
    """r and s, 32 bytes each, from a signature in DER. Raises SignerUnavailable."""
    try:
        r, s = decode_dss_signature(der)  # type: ignore[arg-type]
        return r.to_bytes(_NUMBER_BYTES, "big") + s.to_bytes(_NUMBER_BYTES, "big")
    except (ValueError, TypeError, OverflowError):
        raise SignerUnavailable("what the service gave is no signature of ECDSA P-256") from None


def _client(settings: KmsSettings) -> Any:
    """Raises ConfigError: a profile that is not there, a file that cannot be read."""
    _check_authorities(settings)
    try:
        return botocore.session.Session().create_client(
            "kms",
            region_name=settings.region,
            endpoint_url=None if settings.endpoint is None else str(settings.endpoint),
            verify=None if settings.ca_file is None else str(settings.ca_file),
            config=Config(
                connect_timeout=settings.timeout_s,
                read_timeout=settings.timeout_s,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS_MAX},
            ),
        )
    except Exception as error:  # the library's, and of the files that it reads
        raise ConfigError(f"the key management service cannot be used: {_words(error)}") from None


def _check_authorities(settings: KmsSettings) -> None:
    """Raises ConfigError. The library would say at the first request, and as if the service did not answer."""
    if settings.ca_file is None:
        return
    try:
        ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigError(f"kms.ca_file: {settings.ca_file} has no certificates to check by: {error}") from None


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _status(error: ClientError) -> int | None:
    status: int | None = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def _words(error: Exception) -> str:
    """What went wrong, on one line: a part of it is the service's own text."""
    told = f"{type(error).__name__}: {error}"
    if isinstance(error, ClientError):
        told = f"{_code(error)}: {error.response.get('Error', {}).get('Message', '')}"
    return "".join(letter if letter.isprintable() else " " for letter in told)[:_WORDS_MAX]
