"""The table of acceptances beside the table of states: how far each is written. Pure.

The two are written one after the other, acceptances first. So a crash in between leaves the table of commands ahead,
never behind. A release that knows nothing of commands moves the states only, and leaves the table of commands where it
was. It is then completed from the log, before anything is judged by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from replica.index.compare import recorded_at
from replica.index.interface import Index
from replica.notary.position import BEGIN, Position


def due(
    accepted: Mapping[bytes, bytes], commands: Position | None, before: Position | None, after: Position
) -> dict[bytes, bytes] | None:
    """What of a run's acceptances is to be written, from position `before` to `after`; None if nothing is, not even the
    position: the table lags and is completed separately, or it is past the run already."""
    written = offset_of(commands)
    if not offset_of(before) <= written <= after.offset:
        return None
    return {key: value for key, value in accepted.items() if recorded_at(value) > written}


def knows_commands(index: Index, offset: int) -> bool:
    """Whether the index has the acceptances of all records up to `offset`."""
    return offset_of(index.commands.position()) >= offset


def ahead_of_states(index: Index) -> list[Position]:
    """How far tables are that have read more than the states, as a crash may leave them."""
    tables = (index.commands.position(), index.parties.position())
    return [table for table in tables if table is not None and table.offset > offset_of(index.position())]


def offset_of(position: Position | None) -> int:
    """The log offset of a position; -1 for none."""
    return BEGIN if position is None else position.offset
