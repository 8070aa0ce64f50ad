"""Problem documents (RFC 9457): the JSON form of everything that is no success."""

from __future__ import annotations

import msgspec

from ledger_api.wire.submissions import WindowDocument
from replica.notary.codes import Code, Retry
from replica.notary.requests import Offset
from replica.notary.rules import Usage

PROBLEM_TYPE = "urn:notary:problem:"
DETAIL_MAX_CHARACTERS = 1_000


class ConflictDocument(msgspec.Struct, frozen=True):
    """A state that was consumed already."""

    state: str
    consumed_by_hash: str
    usage: Usage


class ProblemDocument(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A problem of RFC 9457. `code` and `retry` are for programs; `detail` and `remedy` are for people."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    remedy: str
    retry: Retry
    request_id: str = ""
    retry_after_s: float | None = None
    tx_id: str = ""
    record_offset: int | None = None
    conflicts: list[ConflictDocument] = []
    judged_at: str = ""
    ledger_end: int | None = None
    pruned_to: int | None = None
    deduplication_max_s: float | None = None
    time_window: WindowDocument | None = None
    accepted_offset: Offset | None = None
    ledger_offset: Offset | None = None

    @property
    def final(self) -> bool:
        """Whether the same content will never be notarised under this transaction id."""
        return self.code in Code.__members__ and Code[self.code].final


def problem_document(
    code: Code, detail: str, request_id: str = "", *, retry_after_s: float | None = None
) -> ProblemDocument:
    """The problem document of a catalogue entry; `detail` may repeat what a caller sent."""
    return ProblemDocument(
        type=PROBLEM_TYPE + code.name,
        title=code.title,
        status=code.status,
        detail=printable(detail),
        code=code.name,
        remedy=code.remedy,
        retry=code.retry,
        request_id=request_id,
        retry_after_s=retry_after_s,
    )


def printable(detail: str) -> str:
    """A detail as it may be answered and logged: of bounded length, and nothing that is no Unicode text."""
    if len(detail) > DETAIL_MAX_CHARACTERS:
        detail = detail[:DETAIL_MAX_CHARACTERS] + " …"
    return detail if detail.isascii() else detail.encode(errors="backslashreplace").decode()
