"""The position of a database in the topic that its log was restored to. Pure."""

from __future__ import annotations

import msgspec

from replica.notary.errors import RestoreRefused
from replica.notary.position import Position
from replica.notary.salvage import Salvage

REPLICA_ACTIVE = "a replica is active: stop all replicas before their topic is changed"


def position_in(published: Position, topic_id: str, salvage: Salvage | None) -> Position:
    """The published position in the restored topic. Raises RestoreRefused when the salvage does not determine it."""
    lost = topic_id if salvage is None else salvage.header.topic_id  # a log that was cut is restored to itself
    is_past = salvage is not None and published.offset > salvage.last
    if salvage is None or (published.topic_id == topic_id and (lost != topic_id or is_past)):
        return msgspec.structs.replace(published, topic_id=topic_id)
    if published.topic_id != salvage.header.topic_id:
        raise RestoreRefused(
            f"the salvage is of topic id {salvage.header.topic_id}, not of {published.topic_id}: name this log's"
        )
    if published.offset != salvage.header.published:
        raise RestoreRefused(
            f"completions are published up to offset {published.offset}; when the salvage was made it was"
            f" {salvage.header.published}: make it again (notary log salvage), and restore with that one"
        )
    if published.offset < salvage.first:
        return msgspec.structs.replace(published, topic_id=topic_id)
    return salvage.position_at(published.offset, topic_id)
