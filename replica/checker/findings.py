"""What a check found: findings with a stable code, and the summary of what was looked at."""

from __future__ import annotations

from collections import Counter
from enum import Enum

import msgspec


class FindingCode(Enum):
    """Each kind of mistake of a notary that the checker can name, with the promise that is broken."""

    DOUBLE_SPEND = "a success was answered for a request whose states the log had consumed already"
    LOST_ANSWER = "an answer names a record that is not in the log, or no record where there must be one"
    OK_FOR_VOID = "an answer was given for a record that counts for nothing"
    WRONG_RECORD = "the record that an answer names holds another submission"
    SHARED_RECORD = "one record answered two submissions"
    WRONG_VERDICT = "an answer differs from the verdict of the log"
    WRONG_OFFSET = "a success names another place than the one where the transaction was first notarised"
    WRONG_DIGEST = "a success certifies other content than was sent"
    WRONG_CONFLICT = "a conflict names other states, uses or winners than the log"
    WRONG_TIME = "a window was judged at another time than the log's"
    WINNER_FROM_NOWHERE = "a conflict names a winner that nobody had sent before the answer"
    RECORD_FROM_NOWHERE = "a counting record belongs to no operation whose outcome is open"
    ORDER_BROKEN = "an operation was sent after another was answered, and stands before it in the log"
    DENIED = "a transaction was said not to be found after the log was known to have it"
    PASSIVE_ANSWERED = "an answer was given by a replica, or in an epoch, that was not in force for it"
    RECEIPT_INVALID = "a receipt does not verify, or certifies something else"
    REFUSED_WRONGLY = "a refusal says of a request, its command or its sender what is not so"
    COMPLETION_MISSING = "a submission that the log decided has no completion"
    COMPLETION_EXTRA = "a completion comes from no record, or is there twice, or out of log order"
    COMPLETION_WRONG = "a completion says something else than the log"
    COMPLETION_MISNUMBERED = "ledger offsets are not dense and increasing"


class Finding(msgspec.Struct, frozen=True):
    """One broken promise: its code, a sentence, and the evidence (operations, offsets, ids in hexadecimal)."""

    code: FindingCode
    message: str
    evidence: dict[str, str | int | None]


class Findings:
    """Collects findings: keeps the first of each code up to a bound, and counts all."""

    def __init__(self, kept_per_code: int = 20) -> None:
        self._kept_per_code = kept_per_code
        self.kept: list[Finding] = []
        self.counts: Counter[FindingCode] = Counter()

    def add(self, code: FindingCode, **evidence: str | int | None) -> None:
        """Note one finding."""
        self.counts[code] += 1
        if self.counts[code] <= self._kept_per_code:
            self.kept.append(Finding(code, code.value, evidence))


class Summary(msgspec.Struct):
    """How much was checked; counts by name."""

    operations: int = 0
    answers: dict[str, int] = {}  # by code; UNKNOWN for operations without a definite answer
    receipts: int = 0
    records: int = 0
    outcomes: dict[str, int] = {}  # counting requests by verdict, SIGN_OF_LIFE, NOTE and LOST
    voids: dict[str, int] = {}  # by reason
    epochs: dict[int, str] = {}  # each epoch that was in force, with the replica that held it
    completions: int = 0


class Report(msgspec.Struct):
    """The result of a check. `findings` is empty if and only if the checker found nothing wrong."""

    findings: list[Finding]
    counts: dict[str, int]  # findings by code, also those beyond the bound on what is kept
    summary: Summary
