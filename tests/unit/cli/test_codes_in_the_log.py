"""Codes that an operator meets in a replica's own log lines: it goes on by itself, and no command ends with them."""

from __future__ import annotations

import asyncio
from typing import Any

from structlog.testing import capture_logs

from ha.lock.interface import DatabaseIdentity
from replica.marks.seen_file import MemorySeenFile, SeenDisk
from replica.notary.granters import Database
from replica.notary.marks import MarksTold, mark_text
from replica.notary.records import BarrierRecord, encode_record
from tests.virtual_time import on_virtual_time
from tests.worlds.core_world import World, submission
from tests.worlds.marks_world import log_of, mark


def said(lines: list[Any]) -> tuple[str, str]:
    """Code and reason of the last activation that came to nothing."""
    ended = [line for line in lines if line["event"] == "stepped_down"]
    assert ended, "no such line"
    return ended[-1]["code"], ended[-1]["reason"]


@on_virtual_time
async def test_a_replica_on_a_primary_that_was_succeeded_says_so() -> None:
    """Goal: it is not taken for a lock that nobody gets. Method: a barrier of a later timeline is in the log; then the
    replica finds the later primary."""
    async with World() as world:
        world.shared.topic.store(
            encode_record(BarrierRecord(7, b"z" * 16, "R9", Database("memory", "memory", 2), 2, 3))
        )
        with capture_logs() as lines:
            replica = await world.replica()
            await asyncio.sleep(30)
        code, reason = said(lines)
        assert (code, replica.participant.standing().active) == ("DATABASE_SUPERSEDED", False)
        assert reason.startswith("activation_failed DATABASE_SUPERSEDED: ")
        assert ("timeline 1" in reason, "timeline 2" in reason) == (True, True)
        world.shared.lock_server.identity = DatabaseIdentity("memory", "memory", 2)
        await replica.until_active()


@on_virtual_time
async def test_a_replica_says_what_is_wrong_with_marks() -> None:
    """Goal: each fault has a name in its log line and in its health. Method: a disk whose slots are both damaged, which
    then takes no writes; and a peer that tells a mark under a barrier that the log does not have."""
    disk = SeenDisk()
    disk.slots = [b"no slot", b"nor this"]
    async with World(peers=("R1", "R2")) as world:
        with capture_logs() as lines:
            replica = await world.replica(disk=disk)
            marks = replica.participant.marks
            marks.note_told("R2", MarksTold(applied=mark_text(mark(700, log_of(701, marker=9)))))
            await replica.until_active()
            assert isinstance(marks._file, MemorySeenFile)
            marks._file.broken = True
            await replica.submit(submission(1))
            await asyncio.sleep(1)
        coded = {line["code"]: line["event"] for line in lines if "code" in line}
        assert coded["SEEN_FILE_DAMAGED"] == "seen_file_damaged"
        assert coded["SEEN_FILE_UNWRITABLE"] == "seen_file_unwritable"
        assert coded["MARK_FOREIGN"] == "mark_foreign"
        assert [problem.partition(":")[0] for problem in marks.problems()] == [
            "MARK_FOREIGN",
            "SEEN_FILE_DAMAGED",
            "SEEN_FILE_UNWRITABLE",
        ]
