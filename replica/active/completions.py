"""Derives completions from the log. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from replica.active.deduplication import Period
from replica.following.apply import Applied
from replica.notary.canonical import change_id
from replica.notary.counted import CountedRequest, CountedSettlement
from replica.notary.errors import Code
from replica.notary.outcomes import CODE_OF
from replica.notary.records import NO_OFFSET, RequestRecord, RequestRecordV2
from replica.notary.requests import TIME_MAX_US
from replica.notary.rules import Verdict
from replica.store.interface import Completion


def completions_of(applied: Applied, periods: Mapping[int, Period | None] | None = None) -> list[Completion]:
    """The completions of a run of records, in log order: the same at every replica, a function of the log alone.

    The exception is `periods`, deduplication periods by log offset, under rules 1: only the replica that admitted the
    submissions knows them.
    """
    known = periods or {}
    completions: list[Completion] = []
    for entry, verdict in applied.decided():
        if isinstance(entry, CountedSettlement):
            completions.extend(_of_settlement(entry))
        elif isinstance(entry, CountedRequest) and verdict is not None:
            completions.append(_of_request(entry, verdict, known.get(entry.offset)))
    return completions


def _of_request(entry: CountedRequest, verdict: Verdict, period: Period | None) -> Completion:
    submission = entry.record.submission
    deduplication_us, deduplication_after = _deduplication(entry.record, period)
    return Completion(
        entry.offset,
        entry.change_id,
        submission.user_id,
        submission.command_id,
        submission.act_as,
        submission.submission_id,
        entry.request.tx_id,
        entry.content_digest,
        CODE_OF[verdict.outcome],
        verdict.notarised_offset,
        entry.judged_us,
        msgspec.msgpack.encode(verdict.conflicts) if verdict.conflicts else b"",
        deduplication_us,
        deduplication_after,
    )


def _deduplication(record: RequestRecord, period: Period | None) -> tuple[int | None, int | None]:
    """The deduplication period in microseconds, or the ledger offset after which acceptances count.

    Under rules 2 the record has it, but for a ledger offset: the record has the log offset instead, and only "after the
    ledger's start" follows from it.
    """
    if isinstance(record, RequestRecordV2):
        if record.deduplication_us < TIME_MAX_US:
            return record.deduplication_us, None
        return None, 0 if record.after_offset == NO_OFFSET else None
    if period is None:
        return None, None
    return (None, period.after) if period.duration_us is None else (period.duration_us, None)


def _of_settlement(entry: CountedSettlement) -> list[Completion]:
    return [
        Completion(
            entry.offset,
            change_id(command.user_id, command.command_id, command.act_as),
            command.user_id,
            command.command_id,
            command.act_as,
            command.submission_id,
            command.tx_id,
            command.content_digest,
            Code.SUBMISSION_NOT_SEQUENCED.name,
            None,
            entry.judged_us,
        )
        for command in entry.record.commands
    ]
