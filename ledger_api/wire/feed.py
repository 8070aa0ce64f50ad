"""The JSON documents of the ledger API's streams and pages. docs/api.md describes them.

A completion's and an update's document are functions of what the log decided: every replica serves the same for the
same offset.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from ledger_api.wire.problems import ConflictDocument, ProblemDocument
from ledger_api.wire.schema import refers_to
from ledger_api.wire.submissions import DeduplicationDocument
from replica.notary.outcomes import DEDUPLICATED, NOTARISED


class CompletionDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="completion"):
    """What became of one attempt; it never changes at its offset.

    An attempt that was refused and is sent again, with the same ids, has a completion more. One that several replicas
    logged, where all serve, has one for each: at most one of them is NOTARISED. `code` is NOTARISED, DEDUPLICATED or a
    code of the error catalogue. DEDUPLICATED is a success as well: the command was accepted before, within this
    attempt's deduplication period, and `notarised_offset` is where its transaction was first notarised.

    `log_offset` is the record that it comes from; `notarised_offset` is where the transaction was first notarised.
    `deduplication` is the period that was honoured.
    """

    offset: int
    user_id: str
    command_id: str
    act_as: list[str]
    submission_id: str
    tx_id: str
    content_digest: str
    code: str
    log_offset: int
    notarised_offset: int | None
    recorded_at: str
    conflicts: list[ConflictDocument]
    deduplication: DeduplicationDocument | None = None

    @property
    def succeeded(self) -> bool:
        """Whether the attempt was a success: the transaction is notarised, by it or by an attempt before it."""
        return self.code in (NOTARISED, DEDUPLICATED)


class UpdateDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="update"):
    """A transaction at the moment it was notarised: each is sent once, however often it was submitted."""

    offset: int
    tx_id: str
    content_digest: str
    act_as: list[str]
    log_offset: int
    recorded_at: str


class CheckpointDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="checkpoint"):
    """All that matches up to `offset` was sent: a reader that comes back may go on after it."""

    offset: int


class EndDocument(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """The last line of a stream that the server ends, with the reason; go on after `offset`."""

    offset: int
    problem: ProblemDocument


class CompletionsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A page. Go on with `next_after`; `ledger_end` and `pruned_to` are of the moment it was made."""

    completions: list[Annotated[msgspec.Raw, refers_to("CompletionDocument")]]
    next_after: int
    ledger_end: int
    pruned_to: int


class UpdatesDocument(msgspec.Struct, frozen=True, kw_only=True):
    """See CompletionsDocument."""

    updates: list[Annotated[msgspec.Raw, refers_to("UpdateDocument")]]
    next_after: int
    ledger_end: int
    pruned_to: int


class LedgerEndDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The newest offset that is published, and the offset up to which completions may be gone."""

    ledger_end: int
    pruned_to: int


StreamDocument = CompletionDocument | UpdateDocument | CheckpointDocument | EndDocument
"""What the lines of a stream are."""


class RequesterDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The submission by which a transaction was notarised first."""

    user_id: str
    command_id: str
    act_as: list[str]
    submission_id: str


class TransactionStatusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction that was notarised: where in the log, at which ledger offset, when, and for whom.

    `offset`, `recorded_at` and `requested_by` are null while the completion is not published yet, or is pruned;
    `requested_by` also for a caller who may not see it.
    """

    tx_id: str
    content_digest: str
    log_offset: int
    offset: int | None
    recorded_at: str | None
    requested_by: RequesterDocument | None


class StateStatusDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a state was consumed; by which transaction, for a caller who may see it, and its hash for everybody."""

    state: str
    consumed: bool
    consumed_by_hash: str | None = None
    consumed_by: str | None = None
    log_offset: int | None = None


class AttemptsDocument(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a state's history: the completions of the transaction that consumed it, and those it beat."""

    state: str
    attempts: list[Annotated[msgspec.Raw, refers_to("CompletionDocument")]]
    next_after: int
    ledger_end: int
    pruned_to: int
