"""What a key management service answers, read with suspicion: answers that no real one gives. The real: test_signer."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from typing import Any

import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, NoCredentialsError
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from replica.active import kms
from replica.active.kms import KmsSigner, point_of, r_and_s
from replica.notary.errors import ConfigError, SignerUnavailable
from replica.notary.signatures import notary_signature_holds
from replica.settings import KmsSettings

SETTINGS = KmsSettings(key_id="alias/notary-1", region="eu-west-2")
KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
ARN = "arn:aws:kms:eu-west-2:111122223333:key/1"


def der_of(key: Any) -> bytes:
    public: bytes = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return public


class Service:
    """Answers as it is told; keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.shown: dict[str, Any] = {"KeyId": ARN, "PublicKey": der_of(KEY)}
        self.signs_with = KEY
        self.answers: Any = None  # instead of a signature: an answer, or an error to raise

    def get_public_key(self, **parameters: Any) -> dict[str, Any]:
        self.asked.append(("get_public_key", parameters))
        return self.shown

    def sign(self, **parameters: Any) -> Any:
        self.asked.append(("sign", parameters))
        if isinstance(self.answers, Exception):
            raise self.answers
        if self.answers is not None:
            return self.answers
        return {"Signature": self.signs_with.sign(parameters["Message"], ec.ECDSA(Prehashed(SHA256())))}


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    made = Service()
    monkeypatch.setattr(kms, "_client", lambda settings: made)
    return made


def refused(code: str, operation: str = "Sign") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": "the reason\nand more"}}, operation)


def test_the_digest_goes_to_the_service_and_to_the_key_that_the_alias_stood_for(service: Service) -> None:
    signer = KmsSigner(SETTINGS)
    assert notary_signature_holds(signer.public_key, b"message", signer.sign(b"message"))
    assert service.asked[0] == ("get_public_key", {"KeyId": "alias/notary-1"})
    told = service.asked[1][1]
    assert (told["KeyId"], told["Message"], told["MessageType"]) == (ARN, sha256(b"message").digest(), "DIGEST")


def test_a_signature_of_another_key_is_refused(service: Service) -> None:
    signer = KmsSigner(SETTINGS)
    service.signs_with = OTHER
    with pytest.raises(SignerUnavailable, match="another key"):
        signer.sign(b"message")


@pytest.mark.parametrize("code", sorted(kms._A_SETTING))
def test_what_a_person_must_change_is_a_matter_of_configuration_at_a_start_alone(service: Service, code: str) -> None:
    """A start that ends for good would otherwise be tried for ever; a replica that runs steps down and tries again."""
    signer = KmsSigner(SETTINGS)
    service.answers = refused(code)
    with pytest.raises(SignerUnavailable, match=rf"{code}.*the reason and more"):
        signer.sign(b"message")
    service.get_public_key = lambda **_: (_ for _ in ()).throw(refused(code))  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match=code):
        KmsSigner(SETTINGS)


@pytest.mark.parametrize(
    "passing",
    [
        refused("ThrottlingException"),
        refused("DisabledException"),
        refused("KMSInvalidStateException"),
        refused("ExpiredTokenException"),
        ConnectTimeoutError(endpoint_url="https://kms"),
        NoCredentialsError(),
        ValueError("an answer that is no JSON"),
    ],
    ids=str,
)
def test_what_may_pass_is_tried_again(service: Service, passing: Exception) -> None:
    service.get_public_key = lambda **_: (_ for _ in ()).throw(passing)  # type: ignore[method-assign]
    with pytest.raises(SignerUnavailable) as told:
        KmsSigner(SETTINGS)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"Signature": None},
        {"Signature": b""},
        {"Signature": "text"},
        {"Signature": bytes(64)},  # r and s without DER
        {"Signature": encode_dss_signature(2**256, 1)},  # 33 bytes
        {"Signature": encode_dss_signature(1, 2**300)},
        {"Signature": encode_dss_signature(1, 1) + b"\0"},
        {"Signature": encode_dss_signature(1, 1)},
        {"Signature": encode_dss_signature(0, 0)},
    ],
    ids=["no", "none", "empty", "text", "raw", "long r", "long s", "a byte more", "another", "zeros"],
)
def test_an_answer_that_is_no_signature_is_refused(service: Service, answer: dict[str, Any]) -> None:
    signer = KmsSigner(SETTINGS)
    service.answers = answer
    with pytest.raises(SignerUnavailable):
        signer.sign(b"message")


@given(st.integers(0, 2**256 - 1), st.integers(0, 2**256 - 1))
def test_r_and_s_have_32_bytes_each(r: int, s: int) -> None:
    raw = r_and_s(encode_dss_signature(r, s))
    assert (len(raw), int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big")) == (64, r, s)


@given(st.binary(max_size=80))
def test_no_bytes_at_all_end_in_another_error(der: bytes) -> None:
    with suppress(SignerUnavailable):
        assert len(r_and_s(der)) == 64
    with pytest.raises(ConfigError):
        point_of(der, "k")


@pytest.mark.parametrize(
    "shown",
    [
        None,
        "text",
        b"",
        bytes(65),
        der_of(ec.generate_private_key(ec.SECP384R1())),
        der_of(ec.generate_private_key(ec.SECP256K1())),
        der_of(ed25519.Ed25519PrivateKey.generate()),
    ],
    ids=["nothing", "text", "no bytes", "zeros", "P-384", "secp256k1", "Ed25519"],
)
def test_a_key_of_another_kind_is_refused_by_its_name(service: Service, shown: object) -> None:
    service.shown = {"KeyId": ARN, "PublicKey": shown}
    with pytest.raises(ConfigError, match=r"kms\.key_id: 'alias/notary-1' is no key of ECDSA P-256"):
        KmsSigner(SETTINGS)
