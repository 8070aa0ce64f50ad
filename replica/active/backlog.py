"""Publishes, from the log, what earlier activations decided and did not publish. Runs before this one serves."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from replica.active.completions import completions_of
from replica.following.apply import Applied, judge_records
from replica.following.log_reading import FIRST_RECORD_MAX_S, bounded_runs, open_after
from replica.index.interface import Index
from replica.log.interface import RequestLog
from replica.notary.errors import LogRefused, LogTruncated, LogUnavailable
from replica.notary.position import Position, begin
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.settings import CoreSettings
from replica.store.interface import ParticipantStore, Published


async def publish_backlog(
    request_log: RequestLog,
    index: Index,
    store: ParticipantStore,
    *,
    published: Published,
    applied_to: Position,
    settings: CoreSettings,
    salvages: Salvages = NO_SALVAGES,
) -> Published:
    """Publish the log from the published position up to `applied_to`; returns the new published position.

    Old records are judged again on the newer index, which gives the old verdicts. Raises LogRefused when the published
    position is ahead of the log, or was not read from it, and what `judged_again` raises.
    """
    position = published.position or begin(applied_to.topic_id)
    if position.offset > applied_to.offset:
        raise LogTruncated(
            f"completions are published to offset {position.offset}, the log ends at {applied_to.offset}"
        )
    if position.offset == applied_to.offset:
        if position.digest != applied_to.digest or position.topic_id != applied_to.topic_id:
            raise LogRefused(f"completions were published from another record at offset {position.offset}")
        return published
    pruned_to = published.pruned_to
    again = judged_again(request_log, index, position, applied_to=applied_to, settings=settings, salvages=salvages)
    async with aclosing(again):
        async for applied in again:
            pruned_to = await store.publish(completions_of(applied), applied.position)
            position = applied.position
    return Published(position, position.ledger_offset, pruned_to)


async def judged_again(
    request_log: RequestLog,
    index: Index,
    position: Position,
    *,
    applied_to: Position,
    settings: CoreSettings,
    salvages: Salvages = NO_SALVAGES,
) -> AsyncGenerator[Applied, None]:
    """What the records after `position` and up to `applied_to` decided, run by run, by an index that has them all.

    Raises LogRefused when the position was not read from this log, LogTruncated when the log ends before it, and
    LogUnavailable.
    """
    reader = await open_after(request_log, applied_to.topic_id, position)
    wait_s = max(FIRST_RECORD_MAX_S, settings.log_stall_max_s)
    try:
        while position.offset < applied_to.offset:
            room = min(settings.read_batch_max, applied_to.offset - position.offset)
            records = await reader.read(room, wait_s)
            if not records:
                raise LogUnavailable(f"no record after offset {position.offset} within {wait_s:g} s")
            wait_s = settings.log_stall_max_s
            for run in bounded_runs(records, settings.read_batch_states_max):
                applied, _ = judge_records(index, position, run, salvages)
                yield applied
                position = applied.position
    finally:
        await reader.close()
