"""Reduces a history to operations: what was sent, when, and what was definitely answered."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import sha256

import msgspec

from replica.checker.findings import FindingCode, Findings, Summary
from replica.checker.history import CommandIds, Content, Event, HistoryError, Invoke, Ok, Refused, Unknown
from replica.checker.judge import NOTARISED, STATE_CONFLICT, TIME_WINDOW_CLOSED, TX_ID_REUSED
from replica.notary.canonical import change_id, content_digest
from replica.notary.errors import BadRequest, Code, Retry
from replica.notary.receipts import Receipt, receipt_from_document
from replica.notary.requests import TimeWindow, make_request, parse_state_ref, parse_tx_id

DECIDED_BY_LOG = frozenset({NOTARISED, TX_ID_REUSED, STATE_CONFLICT, TIME_WINDOW_CLOSED})
_FINAL = frozenset(code.name for code in Code if code.retry is Retry.NO and 400 <= code.status < 500)


class ConflictSeen(msgspec.Struct, frozen=True, order=True, gc=False):
    """One state of a conflict as it was answered."""

    state: bytes
    consumed_by_hash: bytes
    usage: str


class Answer(msgspec.Struct, frozen=True, gc=False):
    """A definite answer: NOTARISED, or the code of a refusal, with all that it claims."""

    code: str
    at_ns: int
    log_offset: int | None = None
    record_offset: int | None = None
    duplicate: bool = False
    conflicts: tuple[ConflictSeen, ...] = ()
    judged_us: int | None = None
    epoch: int | None = None
    replica: str | None = None


class Operation(msgspec.Struct, gc=False):
    """One attempt. `answer` is None while the outcome is unknown."""

    process: str
    op: int
    is_look_up: bool
    tx_id: bytes
    content_digest: bytes | None  # of what was sent; of what was answered to a look-up
    command: bytes | None  # `command_fingerprint`
    sent_ns: int
    answer: Answer | None = None

    @property
    def name(self) -> str:
        """What findings call the operation."""
        return f"{self.process}/{self.op}"


def command_fingerprint(user_id: str, command_id: str, act_as: tuple[str, ...], submission_id: str) -> bytes:
    """What tells submissions of commands apart."""
    return sha256(change_id(user_id, command_id, act_as) + submission_id.encode()).digest()


def collect(
    history: Iterable[Event],
    verify_receipt: Callable[[Receipt], bool] | None,
    findings: Findings,
    summary: Summary,
) -> list[Operation]:
    """The operations of a history, and findings that need no log: digests, receipts.

    Raises HistoryError when events do not fit together, or say what no client can have sent or heard.
    """
    operations: list[Operation] = []
    open_operations: dict[tuple[str, int], Operation] = {}
    newest: dict[str, int] = {}
    answers: Counter[str] = Counter()
    for event in history:
        name = (event.process, event.op)
        if isinstance(event, Invoke):
            if event.op <= newest.get(event.process, -1):
                raise HistoryError(f"operation {event.process}/{event.op}: numbers rise within a process")
            newest[event.process] = event.op
            operation = _sent(event)
            open_operations[name] = operation
            operations.append(operation)
            continue
        answered = open_operations.pop(name, None)
        if answered is None:
            raise HistoryError(f"operation {event.process}/{event.op} was not sent, or ended twice")
        if event.at_ns < answered.sent_ns:
            raise HistoryError(f"operation {answered.name} was answered before it was sent")
        if not isinstance(event, Unknown):
            answered.answer = _definite(event, answered)
            answers[answered.answer.code] += 1
            if isinstance(event, Ok):
                _check_success(event, answered, verify_receipt, findings, summary)
    summary.operations = len(operations)
    summary.answers = {**answers, "UNKNOWN": len(operations) - answers.total()}
    return operations


def _sent(event: Invoke) -> Operation:
    try:
        tx_id = parse_tx_id(event.tx_id)
        digest = None if event.content is None else _digest(tx_id, event.content)
    except BadRequest as error:
        raise HistoryError(f"operation {event.process}/{event.op}: {error.detail}") from None
    process, is_look_up = sys.intern(event.process), event.content is None
    return Operation(process, event.op, is_look_up, tx_id, digest, _fingerprint(event.command), event.at_ns)


def _digest(tx_id: bytes, content: Content) -> bytes:
    window = None
    if content.from_us is not None or content.until_us is not None:
        window = TimeWindow(content.from_us, content.until_us)
    inputs = [parse_state_ref(text) for text in content.inputs]
    references = [parse_state_ref(text) for text in content.references]
    return content_digest(make_request(tx_id, inputs, references, window, content.party))


def _fingerprint(command: CommandIds | None) -> bytes | None:
    if command is None:
        return None
    return command_fingerprint(command.user_id, command.command_id, command.act_as, command.submission_id)


def _definite(event: Ok | Refused, operation: Operation) -> Answer:
    if isinstance(event, Ok):
        return Answer(
            NOTARISED,
            event.at_ns,
            event.log_offset,
            event.record_offset,
            event.duplicate,
            epoch=event.epoch,
            replica=event.replica,
        )
    try:
        if event.code not in _FINAL:
            raise BadRequest(f"{event.code} is no definite refusal, which makes the outcome unknown")
        conflicts = tuple(
            [ConflictSeen(parse_state_ref(c.state), parse_tx_id(c.consumed_by_hash), c.usage) for c in event.conflicts]
        )
    except BadRequest as error:
        raise HistoryError(f"operation {operation.name}: {error.detail}") from None
    return Answer(
        sys.intern(event.code),
        event.at_ns,
        None,
        event.record_offset,
        conflicts=conflicts,
        judged_us=event.judged_us,
        epoch=event.epoch,
        replica=event.replica,
    )


def _check_success(
    event: Ok,
    operation: Operation,
    verify_receipt: Callable[[Receipt], bool] | None,
    findings: Findings,
    summary: Summary,
) -> None:
    answered = bytes.fromhex(event.content_digest)
    if operation.is_look_up:
        operation.content_digest = answered
    elif answered != operation.content_digest:
        findings.add(FindingCode.WRONG_DIGEST, operation=operation.name, answered=event.content_digest)
    if verify_receipt is None or event.receipt is None:
        return
    summary.receipts += 1
    try:
        receipt = receipt_from_document(event.receipt)
    except BadRequest as error:
        findings.add(FindingCode.RECEIPT_INVALID, operation=operation.name, problem=error.detail)
        return
    if receipt.tx_id != operation.tx_id or receipt.content_digest != answered:
        findings.add(FindingCode.RECEIPT_INVALID, operation=operation.name, problem="of another transaction or content")
    elif not verify_receipt(receipt):
        findings.add(FindingCode.RECEIPT_INVALID, operation=operation.name, problem="does not verify")
