"""Answers against the log: every definite answer to a client must agree with the log, now and for ever."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha256

import msgspec

from replica.checker.findings import FindingCode, Findings
from replica.checker.judge import (
    DEDUPLICATED,
    NOTARISED,
    STATE_CONFLICT,
    TIME_WINDOW_CLOSED,
    Judged,
    JudgedBarrier,
    JudgedLost,
    JudgedRequest,
    JudgedVoid,
)
from replica.checker.operations import (
    DECIDED_BY_LOG,
    NOT_FOUND,
    Answer,
    ConflictSeen,
    Operation,
    command_of,
)
from replica.checker.order import DenialCheck, OrderCheck
from replica.checker.reuse import ReuseCheck
from replica.notary.leases import is_leased


class _Claim(msgspec.Struct, gc=False):
    """An answer that rests on the record at `offset`."""

    offset: int
    operation: Operation
    answer: Answer


class _Open(msgspec.Struct, gc=False):
    """Attempts of one submission whose outcome is unknown: how many are left, and when the first was sent."""

    left: int
    sent_ns: int


class AnswerCheck:
    """Reads the judged records in log order, and compares each with the answers that rest on it.

    Records below `first_offset` are older than the history. `complete`: the history has every attempt of every client,
    so every counting record must belong to one of them. `all_serve`: any replica may answer, else only the one whose
    epoch it is.
    """

    def __init__(
        self,
        operations: list[Operation],
        first_offset: int,
        complete: bool,
        findings: Findings,
        *,
        all_serve: bool = False,
    ) -> None:
        self._all_serve = all_serve
        self._findings = findings
        self._first_offset = first_offset
        self._complete = complete
        self._order = OrderCheck()
        self._sent_ns: dict[bytes, int] = {}  # transaction id -> when it was first sent
        self._open: dict[bytes, _Open] = {}  # command, transaction id, digest -> operations with unknown outcome
        self._without_record: list[Operation] = []
        self._epoch = 0  # in force at the record seen last
        self._leased = False  # whether a barrier so far is a claim to a lease
        self._before_lost: set[int] = set()  # epochs in force where records were lost; barriers may be among those
        for operation in operations:
            self._note_sent(operation)
        self._claims = self._claims_of(operations)
        self._denials = DenialCheck(operations)
        self._reuses = ReuseCheck(operations)

    def see(self, judged: Judged) -> None:
        """The next record of the log."""
        self._reuses.see(judged)
        if isinstance(judged, JudgedBarrier):
            self._epoch = judged.record.epoch
            self._leased |= is_leased(judged.record)
        elif isinstance(judged, JudgedLost):
            self._before_lost.add(self._epoch)
        own: _Claim | None = None
        recalled: list[_Claim] = []
        while self._claims and self._claims[-1].offset == judged.offset:
            claim = self._claims.pop()
            if claim.answer.record_offset is None:
                self._check_recalled(claim, judged)
                recalled.append(claim)
                continue
            if own is not None:
                self._add(FindingCode.SHARED_RECORD, claim, other=own.operation.name)
            own = claim
            self._check_decided(claim, judged)
        if isinstance(judged, JudgedRequest):
            self._note_record(judged, own)
        for claim in recalled:
            self._order.note_recalled(judged.offset, claim.answer.at_ns)

    def finish(self, epochs: dict[int, str], notarised: Mapping[bytes, tuple[bytes, int]]) -> None:
        """The log has ended. `epochs`: each epoch that was in force, with its replica; `notarised`: the judge's."""
        for claim in reversed(self._claims):
            self._add(FindingCode.LOST_ANSWER, claim, problem="the log ends before it")
        for operation in self._without_record:
            answer = operation.answer
            if answer is not None and answer.epoch is not None:
                held_by = epochs.get(answer.epoch)
                if self._barrier_may_be_lost(answer.epoch, epochs):
                    continue
                if held_by is None or not self._may_answer(answer, held_by):
                    claim = _Claim(-1, operation, answer)
                    self._add(FindingCode.PASSIVE_ANSWERED, claim, epoch=answer.epoch, replica=answer.replica)
        self._denials.finish(notarised, self._findings)
        self._reuses.finish(self._may_precede, self._findings)
        self._order.finish(self._findings)

    def _may_answer(self, answer: Answer, leads: str) -> bool:
        """Whether who answered, as far as that is known, may do so in an epoch of this replica."""
        return self._all_serve or answer.replica in (None, leads)

    def _barrier_may_be_lost(self, epoch: int, epochs: Collection[int]) -> bool:
        """Whether the log has lost records between the epochs in force before and after this one.

        Claims to a lease count on from the log, so where it lost some they have given numbers again.
        """
        if self._leased:
            return any(one < epoch for one in self._before_lost)
        return max([one for one in epochs if one < epoch], default=0) in self._before_lost and epoch not in epochs

    # ---- before the log ----

    def _note_sent(self, operation: Operation) -> None:
        digest = operation.content_digest
        if operation.is_look_up or digest is None:
            return
        first_ns = self._sent_ns.get(operation.tx_id)
        if first_ns is None or operation.sent_ns < first_ns:
            self._sent_ns[operation.tx_id] = operation.sent_ns
        if operation.answer is None:
            key = (operation.command or b"") + operation.tx_id + digest
            of_submission = self._open.setdefault(key, _Open(0, operation.sent_ns))
            of_submission.left += 1
            of_submission.sent_ns = min(of_submission.sent_ns, operation.sent_ns)

    def _claims_of(self, operations: list[Operation]) -> list[_Claim]:
        """All claims, the last one first."""
        claims: list[_Claim] = []
        for operation in operations:
            answer = operation.answer
            if answer is None:
                continue
            if answer.record_offset is not None:
                claims.append(_Claim(answer.record_offset, operation, answer))
                continue
            recalled = operation.is_look_up or answer.duplicate
            if answer.code == NOTARISED and answer.log_offset is not None and recalled:
                claims.append(_Claim(answer.log_offset, operation, answer))
                self._without_record.append(operation)
            elif answer.code in DECIDED_BY_LOG:
                self._add(FindingCode.LOST_ANSWER, _Claim(-1, operation, answer), problem="it names no record")
            elif answer.code == NOT_FOUND:
                self._without_record.append(operation)
        claims.sort(key=_offset_of, reverse=True)
        return claims

    # ---- record by record ----

    def _check_decided(self, claim: _Claim, judged: Judged) -> None:
        answer, operation = claim.answer, claim.operation
        if isinstance(judged, JudgedLost):
            self._check_lost(claim, judged)
            return
        if isinstance(judged, JudgedVoid):
            self._add(FindingCode.OK_FOR_VOID, claim, reason=judged.reason)
            return
        if not isinstance(judged, JudgedRequest) or not _is_submission_of(operation, judged):
            self._add(FindingCode.WRONG_RECORD, claim)
            return
        if answer.epoch not in (None, judged.barrier.epoch) or not self._may_answer(answer, judged.barrier.replica):
            self._add(FindingCode.PASSIVE_ANSWERED, claim, epoch=answer.epoch, replica=answer.replica)
        if answer.code == NOTARISED and judged.outcome == DEDUPLICATED:
            self._check_repeated(claim, judged)
        elif answer.code != judged.outcome:
            double_spend = answer.code == NOTARISED and judged.outcome == STATE_CONFLICT
            code = FindingCode.DOUBLE_SPEND if double_spend else FindingCode.WRONG_VERDICT
            self._add(code, claim, log_says=judged.outcome)
        elif answer.log_offset != judged.notarised_offset:
            self._add(FindingCode.WRONG_OFFSET, claim, log_says=judged.notarised_offset)
        elif answer.code == TIME_WINDOW_CLOSED and answer.judged_us not in (None, judged.judged_us):
            self._add(FindingCode.WRONG_TIME, claim, answered=answer.judged_us, log_says=judged.judged_us)
        elif answer.code == STATE_CONFLICT:
            self._check_conflict(claim, judged)

    def _check_repeated(self, claim: _Claim, judged: JudgedRequest) -> None:
        """Check a recorded success that the log gave again: it is called a duplicate, and names the first place."""
        if not claim.answer.duplicate:
            self._add(FindingCode.WRONG_VERDICT, claim, log_says=judged.outcome)
        elif claim.answer.log_offset != judged.notarised_offset:
            self._add(FindingCode.WRONG_OFFSET, claim, log_says=judged.notarised_offset)

    def _check_lost(self, claim: _Claim, judged: JudgedLost) -> None:
        """Check an answer with a lost record. The salvage says what it notarised; a refusal cannot be judged again."""
        answer, operation = claim.answer, claim.operation
        if answer.code == NOTARISED and answer.log_offset == judged.offset:
            digest = operation.content_digest or judged.content_digest
            if (operation.tx_id, digest) != (judged.tx_id, judged.content_digest):
                self._add(FindingCode.LOST_ANSWER, claim, problem="the salvage does not have it")
        elif answer.code != NOTARISED and operation.tx_id == judged.tx_id:
            self._add(FindingCode.WRONG_VERDICT, claim, log_says=NOTARISED)

    def _check_conflict(self, claim: _Claim, judged: JudgedRequest) -> None:
        true = [ConflictSeen(c.state, sha256(c.consumed_by).digest(), c.usage) for c in judged.conflicts]
        if sorted(claim.answer.conflicts) != sorted(true):
            self._add(FindingCode.WRONG_CONFLICT, claim)
        for conflict in judged.conflicts:
            if not self._may_precede(conflict.consumed_by, conflict.consumed_at, claim.answer.at_ns):
                sent_ns = self._sent_ns.get(conflict.consumed_by)
                self._add(FindingCode.WINNER_FROM_NOWHERE, claim, winner=conflict.consumed_by.hex(), sent_ns=sent_ns)
                return

    def _may_precede(self, tx_id: bytes, offset: int, at_ns: int) -> bool:
        """Whether a transaction that is in the log at `offset` can have been sent before `at_ns`."""
        sent_ns = self._sent_ns.get(tx_id)
        if sent_ns is None:
            return offset < self._first_offset or not self._complete
        return sent_ns < at_ns

    def _check_recalled(self, claim: _Claim, judged: Judged) -> None:
        """Check a success without a record of its own: it must name the record that first notarised the transaction."""
        answer, operation = claim.answer, claim.operation
        if isinstance(judged, JudgedLost):
            self._check_lost(claim, judged)
        elif not isinstance(judged, JudgedRequest) or judged.request.tx_id != operation.tx_id:
            self._add(FindingCode.LOST_ANSWER, claim, problem="the record is not of this transaction")
        elif judged.outcome != NOTARISED:
            self._add(FindingCode.WRONG_VERDICT, claim, log_says=judged.outcome)
        elif judged.notarised_offset != answer.log_offset:
            self._add(FindingCode.WRONG_OFFSET, claim, log_says=judged.notarised_offset)
        elif judged.content_digest != operation.content_digest:
            self._add(FindingCode.WRONG_DIGEST, claim, log_says=judged.content_digest.hex())
        elif answer.epoch is not None and answer.epoch < judged.barrier.epoch:
            self._add(FindingCode.PASSIVE_ANSWERED, claim, epoch=answer.epoch, replica=answer.replica)

    def _note_record(self, judged: JudgedRequest, own: _Claim | None) -> None:
        if own is not None:
            self._order.note(judged.offset, own.operation.sent_ns, own.answer.at_ns)
            return
        # a decision that no client received: of an operation whose outcome is unknown
        tx_id = judged.request.tx_id
        content = tx_id + judged.content_digest
        possible = self._open.get(command_of(judged.command) + content) or self._open.get(content)
        if possible is not None and possible.left > 0:
            possible.left -= 1
        elif judged.offset >= self._first_offset and self._complete:
            self._findings.add(FindingCode.RECORD_FROM_NOWHERE, record_offset=judged.offset, tx_id=tx_id.hex())
        if possible is not None:
            self._order.note(judged.offset, possible.sent_ns, None)

    def _add(self, code: FindingCode, claim: _Claim, **more: str | int | None) -> None:
        answer = claim.answer
        self._findings.add(
            code,
            operation=claim.operation.name,
            tx_id=claim.operation.tx_id.hex(),
            answer=answer.code,
            log_offset=answer.log_offset,
            record_offset=answer.record_offset,
            **more,
        )


def _offset_of(claim: _Claim) -> int:
    return claim.offset


def _is_submission_of(operation: Operation, judged: JudgedRequest) -> bool:
    return (
        operation.tx_id == judged.request.tx_id
        and operation.content_digest == judged.content_digest
        and (operation.command is None or operation.command == command_of(judged.command))
    )
