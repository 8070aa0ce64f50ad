"""Completions against the log: exactly one for each decided submission, dense, in log order, with the same words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import msgspec

from replica.checker.findings import FindingCode, Findings
from replica.checker.judge import NOTARISED, Judged, JudgedLost, JudgedRequest


class CompletionRow(msgspec.Struct, frozen=True, gc=False):
    """One completion as the participant store keeps it; times in microseconds UTC.

    `outcome` is NOTARISED or a code of the error catalogue; `detail` a conflict's states in MessagePack, else empty.
    """

    ledger_offset: int
    log_offset: int
    change_id: bytes
    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    submission_id: str
    tx_id: bytes
    content_digest: bytes
    outcome: str
    notarised_offset: int | None
    recorded_us: int
    detail: bytes = b""


def completions_of(judged: Judged) -> list[CompletionRow]:
    """The completions that a record must have."""
    return [_of_request(judged)] if isinstance(judged, JudgedRequest) else []


def _of_request(judged: JudgedRequest) -> CompletionRow:
    command = judged.command
    detail = b""
    if judged.conflicts:
        named = [[c.state, sha256(c.consumed_by).digest(), c.usage] for c in judged.conflicts]
        detail = msgspec.msgpack.encode(named)
    return CompletionRow(
        judged.ledger_offset,
        judged.offset,
        judged.change_id,
        command.user_id,
        command.command_id,
        command.act_as,
        command.submission_id,
        judged.request.tx_id,
        judged.content_digest,
        judged.outcome,
        judged.notarised_offset,
        judged.judged_us,
        detail,
    )


class CompletionCheck:
    """Compares the store's completions, in order of their ledger offsets, with those that the log demands."""

    def __init__(self, rows: Iterable[CompletionRow], findings: Findings) -> None:
        self._rows: Iterator[CompletionRow] = iter(rows)
        self._findings = findings
        self._ledger_offset = 0  # of the newest row
        self.compared = 0
        self._row = self._take()

    def see(self, log_offset: int, expected: list[CompletionRow]) -> None:
        """The completions that the record at `log_offset` demands."""
        found = self._found(log_offset)
        for demanded, row in zip(expected, found, strict=False):
            if msgspec.structs.replace(demanded, ledger_offset=row.ledger_offset) != row:
                self._findings.add(FindingCode.COMPLETION_WRONG, **_evidence(row))
            elif demanded != row:
                self._misnumbered(row, demanded.ledger_offset)
        for row in found[len(expected) :]:
            self._extra(row)
        for demanded in expected[len(found) :]:
            self._findings.add(FindingCode.COMPLETION_MISSING, **_evidence(demanded) | {"ledger_offset": None})

    def see_lost(self, judged: JudgedLost) -> None:
        """Check the completions of a lost record: only what it notarised can be judged."""
        for row in self._found(judged.offset):
            first_time = row.outcome == NOTARISED and row.notarised_offset == judged.offset
            if first_time and (row.tx_id, row.content_digest) != (judged.tx_id, judged.content_digest):
                self._findings.add(FindingCode.COMPLETION_WRONG, **_evidence(row))

    def _found(self, log_offset: int) -> list[CompletionRow]:
        """The completions at this offset; there is none between it and the offset before."""
        found: list[CompletionRow] = []
        while self._row is not None and self._row.log_offset <= log_offset:
            if self._row.log_offset == log_offset:
                found.append(self._row)
            else:
                self._extra(self._row)
            self._row = self._take()
        return found

    def finish(self) -> None:
        """The log ends here, or is published only up to here: no completion may be left."""
        while self._row is not None:
            self._extra(self._row)
            self._row = self._take()

    def _extra(self, row: CompletionRow) -> None:
        self._findings.add(FindingCode.COMPLETION_EXTRA, **_evidence(row))

    def _take(self) -> CompletionRow | None:
        row = next(self._rows, None)
        if row is None:
            return None
        self.compared += 1
        if row.ledger_offset <= self._ledger_offset:
            self._misnumbered(row, self._ledger_offset + 1)
        self._ledger_offset = row.ledger_offset
        return row

    def _misnumbered(self, row: CompletionRow, due: int) -> None:
        self._findings.add(FindingCode.COMPLETION_MISNUMBERED, ledger_offset=row.ledger_offset, due=due)


def _evidence(row: CompletionRow) -> dict[str, str | int | None]:
    return {
        "ledger_offset": row.ledger_offset,
        "log_offset": row.log_offset,
        "command_id": row.command_id,
        "submission_id": row.submission_id,
        "tx_id": row.tx_id.hex(),
        "outcome": row.outcome,
    }
