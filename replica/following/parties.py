"""Completes officers and registrations from the log, where their table has fewer than the index's position says.

An index of an older release has no such table; one that an older release led on lacks the newest; a machine that
crashed may have lost some. Records are only read for it, not judged: no registration depends on a verdict.
"""

from __future__ import annotations

import structlog

from ha.clock import Clock
from replica.following.apply import lost_in, notes_in
from replica.following.log_reading import bounded_runs, open_after
from replica.index.commands import offset_of
from replica.index.interface import Index
from replica.index.parties import write_notes
from replica.log.interface import RequestLog
from replica.notary.errors import LogUnavailable
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.salvage import NO_SALVAGES, OF_PARTIES, Salvages, of_kinds
from replica.settings import CoreSettings

log = structlog.get_logger()

RUN_STATES_MAX = 1_000  # about two milliseconds of the event loop


async def complete_parties(
    request_log: RequestLog,
    index: Index,
    topic_id: str,
    *,
    clock: Clock,
    settings: CoreSettings,
    salvages: Salvages = NO_SALVAGES,
) -> None:
    """Read the log from where the registrations end to the index's position, and add what is missing.

    Returns once the table is not behind; from then on the follower writes it. A table that is ahead, after a crash,
    must be of this log as well. Raises LogUnavailable, LogRefused, LogTruncated and IndexUnreadable.
    """
    position = index.parties.position() or begin(topic_id)
    if position == (index.position() or begin(topic_id)):
        return
    log.info("parties_incomplete", applied_offset=offset_of(index.position()), parties_offset=position.offset)
    reader = await open_after(request_log, topic_id, position)
    try:
        while (left := offset_of(index.position()) - offset_of(index.parties.position())) > 0:  # the follower reads on
            records = await reader.read(min(left, settings.read_batch_max), settings.log_stall_max_s)
            if not records:
                raise LogUnavailable(f"no record after offset {position.offset} within {settings.log_stall_max_s} s")
            for run in bounded_runs(records, RUN_STATES_MAX):
                reading = read_records(position, run)
                lost = of_kinds(lost_in(reading, run, salvages), OF_PARTIES)
                write_notes(index.parties, notes_in(reading), position, reading.position, lost)
                position = reading.position
                if position.offset == offset_of(index.position()):
                    break  # at once: from here on the follower writes this table
                await clock.sleep_s(0)  # let heartbeat, front ends and the follower in between two runs
    finally:
        await reader.close()
    log.info("parties_complete", applied_offset=position.offset)
