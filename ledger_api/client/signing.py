"""Makes signed submissions, and checks the answers."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from nacl.signing import SigningKey

from ledger_api.wire.submissions import ANONYMOUS, BatchDocument, DeduplicationDocument, submission_to_document
from replica.notary.answers import Notarised
from replica.notary.canonical import encode_request, summarise
from replica.notary.receipts import verify_receipt
from replica.notary.requests import Submission, TimeWindow, check_command, make_request

SUBMISSION_ID_BYTES = 16
_encoder = msgspec.json.Encoder()

Deduplication = DeduplicationDocument
"""How far back an acceptance of the same command counts: within `duration_s`, or above ledger offset `after_offset`."""


@dataclass(frozen=True, slots=True)
class Party:
    """A party that submits: its X.500 name, spelt as in the notary's registry, and the key that signs for it."""

    name: str
    key: SigningKey = field(default_factory=SigningKey.generate, repr=False)

    @property
    def public_key(self) -> bytes:
        """The Ed25519 public key, to be registered."""
        return bytes(self.key.verify_key)

    def sign(
        self,
        tx_id: bytes,
        inputs: Iterable[bytes] = (),
        references: Iterable[bytes] = (),
        window: TimeWindow | None = None,
        *,
        command_id: str | None = None,
        user_id: str = ANONYMOUS,
        act_as: Sequence[str] | None = None,
        submission_id: str | None = None,
    ) -> Submission:
        """A signed submission; states in any order, as `parse_state_ref` gives them. Raises BadRequest.

        The command id defaults to the transaction id, so that the same transaction is the same command. Keep the
        submission and send it again, unchanged, until its answer is final.
        """
        raw = encode_request(make_request(tx_id, list(inputs), list(references), window, self.name))
        submission = Submission(
            raw,
            self.public_key,
            self.key.sign(raw).signature,
            user_id,
            tx_id.hex() if command_id is None else command_id,
            (self.name,) if act_as is None else tuple(sorted(act_as)),
            os.urandom(SUBMISSION_ID_BYTES).hex() if submission_id is None else submission_id,
        )
        check_command(submission.user_id, submission.command_id, submission.act_as, submission.submission_id)
        return submission


def encode_submission(submission: Submission, deduplication: Deduplication | None = None) -> bytes:
    """The body that submits one."""
    document = submission_to_document(submission)
    if deduplication is not None:
        document = msgspec.structs.replace(document, deduplication=deduplication)
    return _encoder.encode(document)


def encode_batch(submissions: Sequence[Submission], deduplication: Deduplication | None = None) -> bytes:
    """The body that submits several."""
    raws = [msgspec.Raw(encode_submission(submission, deduplication)) for submission in submissions]
    return _encoder.encode(BatchDocument(raws))


def certifies(answer: Notarised, submission: Submission, notary_key: bytes) -> bool:
    """Whether a success bears the notary's signature and certifies exactly what was submitted."""
    tx_id, content_digest, _ = summarise(submission.request)
    receipt = answer.receipt
    same = (receipt.tx_id, receipt.content_digest) == (tx_id, content_digest) == (answer.tx_id, answer.content_digest)
    return same and verify_receipt(receipt, notary_key)
