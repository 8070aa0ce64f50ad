"""Makes signed submissions, and checks the answers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import msgspec
from nacl.signing import SigningKey

from ledger_api.wire.submissions import (
    ANONYMOUS,
    BatchDocument,
    DeduplicationDocument,
    submission_to_document,
    terms_from_document,
)
from replica.notary.answers import Notarised
from replica.notary.canonical import summarise
from replica.notary.errors import BadRequest, ConfigError
from replica.notary.receipts import verify_receipt
from replica.notary.requests import (
    DEDUPLICATION_LIMIT_S,
    LEDGER_ID_BYTES,
    STATE_REF_BYTES,
    TX_ID_BYTES,
    Submission,
    TimeWindow,
    check_command,
    check_submission_id,
    make_request,
    parse_ledger_id,
    parse_state_ref,
    parse_tx_id,
)
from replica.notary.secret_files import check_secret
from replica.notary.signatures import notary_key_from_hex
from replica.notary.terms import decode_canonical, encode_canonical

SUBMISSION_ID_BYTES = 16
OFFSET_MAX = 2**63 - 1
_encoder = msgspec.json.Encoder()


class Deduplication(DeduplicationDocument, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far back an acceptance of the same command counts: within `duration_s`, or above `after_offset`.

    Raises BadRequest where the notary would: both at once, or one out of its range.
    """

    def __post_init__(self) -> None:
        if self.duration_s is not None and self.after_offset is not None:
            raise BadRequest("a deduplication period is a duration or an offset, not both")
        if self.duration_s is not None and not 0 <= self.duration_s <= DEDUPLICATION_LIMIT_S:
            raise BadRequest(f"duration_s lies in 0..{DEDUPLICATION_LIMIT_S:.0f}, not {self.duration_s}")
        if self.after_offset is not None:
            check_offset(self.after_offset)


@dataclass(frozen=True, slots=True)
class Party:
    """A party that submits: its X.500 name, spelt as it is registered, the ledger that it signs for, by its id of
    16 bytes (`NotaryClient.describe` tells it), and the key that signs for it."""

    name: str
    ledger_id: bytes
    key: SigningKey = field(default_factory=SigningKey.generate, repr=False)

    def __post_init__(self) -> None:
        """Raises BadRequest for no ledger id."""
        object.__setattr__(self, "ledger_id", ledger_id_of(self.ledger_id))

    @classmethod
    def from_file(cls, name: str, ledger_id: bytes | str | None, path: Path | str) -> Self:
        """The party with the key that `notary keys create` made. `ledger_id`: its bytes, or the digits that
        `NotaryClient.describe` gives. Raises ConfigError, also if others can read it, and BadRequest for no ledger id.
        """
        return cls(name, ledger_id_of(ledger_id), read_signing_key(Path(path)))

    def for_ledger(self, ledger_id: bytes | str | None) -> Self:
        """The same party, which signs for this ledger. Raises BadRequest for no ledger id."""
        return replace(self, ledger_id=ledger_id_of(ledger_id))

    @property
    def public_key(self) -> bytes:
        """The Ed25519 public key, to be registered."""
        return bytes(self.key.verify_key)

    def sign(
        self,
        tx_id: bytes | str | None = None,
        inputs: Iterable[bytes | str] = (),
        references: Iterable[bytes | str] = (),
        window: TimeWindow | None = None,
        *,
        command_id: str | None = None,
        user_id: str = ANONYMOUS,
        act_as: Sequence[str] | None = None,
        submission_id: str | None = None,
        deduplication: Deduplication | None = None,
    ) -> Submission:
        """A signed submission. Raises BadRequest naming the rule that is broken.

        `tx_id`: 32 bytes or 64 hexadecimal digits; without it, a random one. States: in any order, as the text
        `<64 hexadecimal digits>:<index>` or as the 36 bytes that `parse_state_ref` gives. The command id defaults to
        the transaction id, so that the same transaction is the same command. Keep the submission and send it again,
        unchanged, until its answer is final.

        The signature covers all but the submission id, so nobody who relays the submission can change it. Where tokens
        are used, `user_id` is the token's.
        """
        tx_id = os.urandom(TX_ID_BYTES) if tx_id is None else tx_id_of(tx_id)
        parts = [state_of(state) for state in inputs], [state_of(state) for state in references]
        request = make_request(tx_id, *parts, window, self.name, ledger_id=self.ledger_id)
        command_id = tx_id.hex() if command_id is None else command_id
        parties = (self.name,) if act_as is None else tuple(sorted(act_as))
        submission_id = os.urandom(SUBMISSION_ID_BYTES).hex() if submission_id is None else submission_id
        check_command(user_id, command_id, parties)
        check_submission_id(submission_id)
        terms = terms_from_document(user_id, command_id, parties, deduplication)
        raw = encode_canonical(request, terms)
        signature = self.key.sign(raw).signature
        return Submission(raw, self.public_key, signature, user_id, command_id, parties, submission_id)


def encode_submission(submission: Submission, deduplication: Deduplication | None = None) -> bytes:
    """The body that submits one. Raises BadRequest for another period than the one that was signed for."""
    document = submission_to_document(submission)
    if deduplication is not None:
        check_signed_period(submission, deduplication)
        document = msgspec.structs.replace(document, deduplication=deduplication)
    return _encoder.encode(document)


def check_signed_period(submission: Submission, deduplication: Deduplication) -> None:
    """Raises BadRequest where the submission's signature covers another period, or none."""
    signed = decode_canonical(submission.request).terms
    if signed != terms_from_document(signed.user_id, signed.command_id, signed.act_as, deduplication):
        raise BadRequest("the submission was signed for another deduplication period")


def encode_batch(submissions: Sequence[Submission], deduplication: Deduplication | None = None) -> bytes:
    """The body that submits several."""
    raws = [msgspec.Raw(encode_submission(submission, deduplication)) for submission in submissions]
    return _encoder.encode(BatchDocument(raws))


def read_signing_key(path: Path) -> SigningKey:
    """An Ed25519 key in PKCS#8 PEM, mode 0600. Raises ConfigError, which never has what the file holds."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    check_secret(path)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise ConfigError(f"the key {path} cannot be read: {error.strerror}") from None
    except (ValueError, TypeError):
        raise ConfigError(f"{path} holds no private key in PKCS#8 PEM without a password") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} holds no Ed25519 key")
    return SigningKey(key.private_bytes_raw())


def ledger_id_of(ledger_id: bytes | str | None) -> bytes:
    """The 16 bytes of a ledger id. Raises BadRequest, also where a replica did not know it yet."""
    if isinstance(ledger_id, str):
        return parse_ledger_id(ledger_id)
    if not isinstance(ledger_id, bytes) or len(ledger_id) != LEDGER_ID_BYTES:
        raise BadRequest(f"a ledger id is {LEDGER_ID_BYTES} bytes, or their hexadecimal digits: ask the notary for it")
    return ledger_id


def tx_id_of(tx_id: bytes | str) -> bytes:
    """The 32 bytes of a transaction id. Raises BadRequest."""
    if isinstance(tx_id, str):
        return parse_tx_id(tx_id)
    if not isinstance(tx_id, bytes) or len(tx_id) != TX_ID_BYTES:
        raise BadRequest(f"a transaction id is {TX_ID_BYTES} bytes, or their hexadecimal digits")
    return tx_id


def state_of(state: bytes | str) -> bytes:
    """The 36 bytes of a state reference. Raises BadRequest."""
    if isinstance(state, str):
        return parse_state_ref(state)
    if not isinstance(state, bytes) or len(state) != STATE_REF_BYTES:
        raise BadRequest(f"a state is {STATE_REF_BYTES} bytes, or '<64 hexadecimal digits>:<index>'")
    return state


def check_offset(offset: int) -> int:
    """A ledger offset that the notary can have. Raises BadRequest."""
    if not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
        raise BadRequest(f"a ledger offset lies in 0..{OFFSET_MAX}, not {offset}")
    return offset


def certifies(answer: Notarised, submission: Submission, notary_key: bytes | str) -> bool:
    """Whether a success has the notary's signature and certifies exactly what was submitted.

    `notary_key`: its bytes or their hexadecimal digits: 32 of Ed25519, 65 of ECDSA P-256. Raises BadRequest if it is
    neither.
    """
    if isinstance(notary_key, str):
        notary_key = notary_key_from_hex("the notary's key", notary_key)
    tx_id, content_digest, _ = summarise(submission.request)
    receipt = answer.receipt
    same = (receipt.tx_id, receipt.content_digest) == (tx_id, content_digest) == (answer.tx_id, answer.content_digest)
    there = receipt.place is None or receipt.place.log_offset == answer.log_offset
    return same and there and verify_receipt(receipt, notary_key)
