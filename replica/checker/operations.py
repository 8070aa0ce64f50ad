"""Reduces a history to operations: what was sent, when, and what was definitely answered."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable
from hashlib import sha256

import msgspec

from replica.checker.door import problem_of_refusal, request_in
from replica.checker.findings import FindingCode, Findings, Summary
from replica.checker.history import CommandIds, Content, Event, HistoryError, Invoke, Ok, Refused, Unknown
from replica.checker.judge import NOTARISED, STATE_CONFLICT, TIME_WINDOW_CLOSED, TX_ID_REUSED
from replica.notary.canonical import change_id, content_digest
from replica.notary.codes import Code, Retry
from replica.notary.errors import BadRequest
from replica.notary.receipts import Receipt, ReceiptDocument, receipt_from_document
from replica.notary.requests import parse_state_ref

NOT_FOUND = "TX_NOT_FOUND"
COMMAND_ID_REUSED = "COMMAND_ID_REUSED"
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
    command: bytes | None  # `command_of`, if the history names commands
    change_id: bytes | None  # of the command, without the submission id
    sent_ns: int
    answer: Answer | None = None

    @property
    def witnessed_offset(self) -> int:
        """The log had reached this offset or more when the operation was answered; -1 if that is not known."""
        answer = self.answer
        if answer is None:
            return -1
        return next((at for at in (answer.record_offset, answer.log_offset) if at is not None), -1)

    @property
    def name(self) -> str:
        """What findings call the operation."""
        return f"{self.process}/{self.op}"


def command_of(ids: CommandIds) -> bytes:
    """The identity of a submission of a command: a hash of all four ids."""
    return sha256(change_id(ids.user_id, ids.command_id, ids.act_as) + ids.submission_id.encode()).digest()


def collect(
    history: Iterable[Event],
    verify_receipt: Callable[[Receipt], bool] | None,
    findings: Findings,
    summary: Summary,
    *,
    tokens: bool = True,
) -> list[Operation]:
    """The operations of a history, and the findings that need no log: digests, receipts, refusals at the door.
    `tokens`: whether callers have to show one.

    Raises HistoryError when events contradict one another, or record what no client can have sent or received.
    """
    collector = _Collector(verify_receipt, findings, tokens)
    for event in history:
        try:
            if isinstance(event, Invoke):
                collector.sent(event)
            else:
                collector.ended(event)
        except BadRequest as error:
            raise HistoryError(f"operation {event.process}/{event.op}: {error.detail}") from None
    operations, answers = collector.operations, collector.answers
    summary.operations = len(operations)
    summary.answers = {**answers, "UNKNOWN": len(operations) - answers.total()}
    summary.receipts = collector.receipts
    return operations


class _Collector:
    """Pairs the events of each operation. Its methods raise BadRequest for events that belong in no history."""

    def __init__(self, verify_receipt: Callable[[Receipt], bool] | None, findings: Findings, tokens: bool) -> None:
        self._verify_receipt = verify_receipt
        self._findings = findings
        self._tokens = tokens
        self._open: dict[tuple[str, int], tuple[Operation, Invoke]] = {}
        self._newest: dict[str, int] = {}  # process -> number of its newest operation
        self.operations: list[Operation] = []
        self.answers: Counter[str] = Counter()
        self.receipts = 0

    def sent(self, event: Invoke) -> None:
        if event.op <= self._newest.get(event.process, -1):
            raise BadRequest("numbers rise within a process")
        self._newest[event.process] = event.op
        process, is_look_up = sys.intern(event.process), event.content is None
        tx_id = _hash(event.tx_id)
        digest = None if event.content is None else _digest(tx_id, event.content)
        ids = event.command
        command = None if ids is None else command_of(ids)
        change = None if ids is None else change_id(ids.user_id, ids.command_id, ids.act_as)
        operation = Operation(process, event.op, is_look_up, tx_id, digest, command, change, event.at_ns)
        self._open[process, event.op] = operation, event
        self.operations.append(operation)

    def ended(self, event: Ok | Refused | Unknown) -> None:
        sent = self._open.pop((event.process, event.op), None)
        if sent is None:
            raise BadRequest("it was not sent, or ended twice")
        operation, invoke = sent
        if event.at_ns < operation.sent_ns:
            raise BadRequest("it was answered before it was sent")
        if isinstance(event, Ok):
            operation.answer = _success(event)
            self._check_success(event, operation)
        elif isinstance(event, Refused):
            operation.answer = _refusal(event)
            problem = problem_of_refusal(event.code, invoke, tokens=self._tokens)
            if problem is not None:
                self._findings.add(
                    FindingCode.REFUSED_WRONGLY, operation=operation.name, answer=event.code, problem=problem
                )
        if operation.answer is not None:
            self.answers[operation.answer.code] += 1

    def _check_success(self, event: Ok, operation: Operation) -> None:
        digest = _hash(event.content_digest)
        if operation.is_look_up:
            operation.content_digest = digest
        elif digest != operation.content_digest:
            self._findings.add(FindingCode.WRONG_DIGEST, operation=operation.name, record_offset=event.record_offset)
        if event.receipt is not None and self._verify_receipt is not None:
            self.receipts += 1
            problem = self._problem_of(event, event.receipt, operation.tx_id, digest, self._verify_receipt)
            if problem is not None:
                self._findings.add(FindingCode.RECEIPT_INVALID, operation=operation.name, problem=problem)

    @staticmethod
    def _problem_of(
        event: Ok, document: ReceiptDocument, tx_id: bytes, digest: bytes, verify: Callable[[Receipt], bool]
    ) -> str | None:
        try:
            receipt = receipt_from_document(document)
        except BadRequest as error:
            return error.detail
        if (receipt.tx_id, receipt.content_digest) != (tx_id, digest):
            return "of another transaction or content"
        if receipt.place is not None and receipt.place.log_offset != event.log_offset:
            return f"of log offset {receipt.place.log_offset}"
        return None if verify(receipt) else "does not verify"


def _digest(tx_id: bytes, content: Content) -> bytes:
    return content_digest(request_in(tx_id, content))


def _success(event: Ok) -> Answer:
    return Answer(
        NOTARISED,
        event.at_ns,
        event.log_offset,
        event.record_offset,
        event.duplicate,
        epoch=event.epoch,
        replica=event.replica,
    )


def _refusal(event: Refused) -> Answer:
    if event.code not in _FINAL:
        raise BadRequest(f"{event.code} is no definite refusal, which makes the outcome unknown")
    return Answer(
        sys.intern(event.code),
        event.at_ns,
        None,
        event.record_offset,
        conflicts=tuple(
            [ConflictSeen(parse_state_ref(c.state), _hash(c.consumed_by_hash), c.usage) for c in event.conflicts]
        ),
        judged_us=event.judged_us,
        epoch=event.epoch,
        replica=event.replica,
    )


def _hash(text: str) -> bytes:
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise BadRequest(f"ids, digests and hashes are 64 hexadecimal digits, not {text!r}")
    return raw
