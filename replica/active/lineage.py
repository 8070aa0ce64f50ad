"""Whether the database that grants our epochs continues the one that granted the epoch in force.

Two primaries of one cluster, the old one not fenced, are two locks. Each grants an epoch to a replica, and the two
replicas' barriers depose each other in turn. A promotion begins a new timeline: the barrier in force has the later one.
"""

from __future__ import annotations

from enum import Enum

from ha.lock.interface import DatabaseIdentity
from replica.log.interface import LogInDatabase, RequestLog
from replica.notary.errors import DatabaseSuperseded
from replica.notary.granters import database_of
from replica.notary.records import BarrierRecord


class Descent(Enum):
    """How our database relates to the one that a barrier names."""

    CONTINUES = "continues"  # the same line of history, or one that branched off it later
    SUPERSEDED = "superseded"  # an older line, such as that of a primary whose standby was promoted
    ANOTHER = "another"  # another system: a restored dump, or an unrelated database
    UNKNOWN = "unknown"  # the barrier does not name its database


def descent(ours: DatabaseIdentity, in_force: str) -> Descent:
    """How our database relates to that one, named `<kind>:<system identifier>:<timeline>`."""
    parts = in_force.split(":")
    if len(parts) != 3 or not parts[2].isdecimal():
        return Descent.UNKNOWN
    kind, system_identifier, timeline = parts
    if (kind, system_identifier) != (ours.kind, ours.system_identifier):
        return Descent.ANOTHER
    return Descent.CONTINUES if ours.timeline >= int(timeline) else Descent.SUPERSEDED


def check_descent(ours: DatabaseIdentity, barrier: BarrierRecord | None) -> Descent:
    """How our database relates to that of the barrier in force. Raises DatabaseSuperseded."""
    database = None if barrier is None else database_of(barrier.granter)
    if barrier is None or database is None:
        return Descent.UNKNOWN
    found = descent(ours, str(database))
    if found is Descent.SUPERSEDED:
        raise DatabaseSuperseded(
            f"this database is on timeline {ours.timeline} of system {ours.system_identifier}; the epoch in force,"
            f" {barrier.epoch} of {barrier.replica}, was granted on timeline {database.timeline}"
        )
    return found


def agree_with_log(ours: DatabaseIdentity, request_log: RequestLog) -> None:
    """Have a log that lies in our database leave older primaries of it.

    A barrier that was granted here and appended there would be lost with the old primary. Raises DatabaseSuperseded
    where the log is on a later primary than we are: our epochs and completions would be lost.
    """
    if not isinstance(request_log, LogInDatabase):
        return
    request_log.require_database(str(ours))
    if descent(ours, request_log.database or "") is Descent.SUPERSEDED:
        raise DatabaseSuperseded(f"the lock is on {ours}, the request log on a later primary, {request_log.database}")
