"""The completion of one request that the log decided. Pure, and the same wherever the log is read."""

from __future__ import annotations

import msgspec

from replica.notary.counted import CountedRequest
from replica.notary.outcomes import CODE_OF
from replica.notary.rules import Verdict
from replica.store.interface import Completion


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
