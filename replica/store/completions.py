"""The completion of one request that the log decided. Pure, and the same wherever the log is read."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from replica.notary.counted import CountedRequest
from replica.notary.outcomes import CODE_OF
from replica.notary.rules import Verdict
from replica.store.interface import Completion, Row


def of_request(
    entry: CountedRequest,
    verdict: Verdict,
    deduplication_us: int | None = None,
    deduplication_after: int | None = None,
) -> Completion:
    """The completion of a request. The deduplication period is that of `Completion`, where it is known."""
    terms = entry.terms
    return Completion(
        entry.offset,
        entry.change_id,
        terms.user_id,
        terms.command_id,
        terms.act_as,
        entry.record.submission_id,
        entry.request.tx_id,
        entry.content_digest,
        CODE_OF[verdict.outcome],
        verdict.notarised_offset,
        entry.judged_us,
        msgspec.msgpack.encode(verdict.conflicts) if verdict.conflicts else b"",
        deduplication_us,
        deduplication_after,
    )


def whole_from(rows: Sequence[Row], ledger_end: int) -> int:
    """After which ledger offset there is a completion at each one up to `ledger_end`, if these are the newest."""
    start = ledger_end - len(rows)
    if not rows or rows[0][0] == start + 1:  # as long as no log has lost records
        return start
    while rows and rows[-1][0] == ledger_end:
        rows, ledger_end = rows[:-1], ledger_end - 1
    return ledger_end


def starts_after(rows: Sequence[Row], ledger_end: int) -> int:
    """The highest ledger end that these completions, which end at `ledger_end`, can go on from."""
    return rows[0][0] - 1 if rows else ledger_end
