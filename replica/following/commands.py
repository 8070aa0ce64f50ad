"""Completes the acceptances of commands from the log, where the index has fewer than its position says.

An index of an older release has none; one that an older release led on lacks the newest; a machine that crashed may
have lost some. Records are judged again for it, in short runs beside the follower's own work.
"""

from __future__ import annotations

import structlog

from ha.clock import Clock
from replica.following.apply import judge_records
from replica.following.log_reading import bounded_runs, open_after
from replica.index.commands import offset_of
from replica.index.interface import Index
from replica.log.interface import RequestLog
from replica.notary.errors import LogUnavailable
from replica.notary.position import begin
from replica.notary.salvage import NO_SALVAGES, Salvages
from replica.settings import CoreSettings

log = structlog.get_logger()

RUN_STATES_MAX = 1_000  # about two milliseconds of the event loop


async def complete_commands(
    request_log: RequestLog,
    index: Index,
    topic_id: str,
    *,
    clock: Clock,
    settings: CoreSettings,
    salvages: Salvages = NO_SALVAGES,
) -> None:
    """Read the log from where the acceptances end to the index's position, and add what is missing.

    Returns once the two positions are equal; from then on they move together. Acceptances that are ahead, after a
    crash, must be of this log as well. Raises LogUnavailable, LogRefused, LogTruncated and IndexUnreadable.
    """
    position = index.commands.position() or begin(topic_id)
    if position == (index.position() or begin(topic_id)):
        return
    log.info("commands_incomplete", applied_offset=offset_of(index.position()), commands_offset=position.offset)
    reader = await open_after(request_log, topic_id, position)
    try:
        while (
            left := offset_of(index.position()) - offset_of(index.commands.position())
        ) > 0:  # the follower moves both
            records = await reader.read(min(left, settings.read_batch_max), settings.log_stall_max_s)
            if not records:
                raise LogUnavailable(f"no record after offset {position.offset} within {settings.log_stall_max_s} s")
            for run in bounded_runs(records, RUN_STATES_MAX):
                applied, _ = judge_records(index, position, run, salvages)
                position = applied.position
                index.commands.write(applied.accepted, position)
                if position.offset == offset_of(index.position()):
                    break  # at once: from here on the follower writes both tables
                await clock.sleep_s(0)  # let heartbeat, front ends and the follower in between two runs
    finally:
        await reader.close()
    log.info("commands_complete", applied_offset=position.offset)
