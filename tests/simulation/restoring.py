"""Operators restore a topic that has lost its tail, as runbooks/topic-loss.md has it, with the product's own functions.

The archive has all but the newest records. Their decisions are salvaged from indexes and completions. The restored
topic has lost records in their place, the database is adopted, and every replica gets the salvage and a new index.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from pipeline.archive.salvage import IndexTail, Survivors, complete_from, merge
from replica.active.signer import FileSigner
from replica.following.apply import Applier
from replica.index.compare import recorded_at
from replica.index.memory import MemoryIndex
from replica.notary.position import Position
from replica.notary.records import RequestRecord, Undecodable, decode_record
from replica.notary.salvage import (
    Salvage,
    bound_name,
    decode_salvage,
    encode_salvage,
)
from replica.notary.terms import signed_in
from replica.store.adopt import position_in
from tests.simulation.doubles.database import Tables
from tests.simulation.doubles.disk import Disk
from tests.simulation.doubles.log import Topic

if TYPE_CHECKING:
    from tests.simulation.world import World

_OPERATOR = FileSigner(Ed25519PrivateKey.from_private_bytes(b"o" * 32))


def lose_tail(world: World, records: int) -> bool:
    """The topic loses its newest records, and is restored; False if no index or completion has any of them.

    Replicas are down meanwhile, and start again later.
    """
    archived = max(len(world.beginning), world.topic.end_offset - records)
    base = _position_behind(world, archived)
    survivors = _survivors(world, base)
    known = max([survivors.published, *[index.position.offset for index in survivors.indexes]])
    if known <= base.offset:
        return False
    for replica in world.replicas:
        replica.kill(heard_s=None)
        replica.restart_later(after_failure=True)
    world.primary.end_all()
    world.sessions_cut_short()
    header, entries = merge(survivors, at_us=world.now_ns() // 1_000, public_key=_OPERATOR.public_key)
    salvage = decode_salvage(encode_salvage(header, entries, _OPERATOR.sign), _OPERATOR.public_key)
    _restore(world, archived, salvage)
    _adopt(world.primary.tables, world.topic.topic_id, salvage)
    for replica in world.replicas:
        replica.disk = Disk()
    lost = f"{salvage.first} to {salvage.last}"
    world.story.tell("topic", "restored", lost=lost, entries=header.entries, published=header.published)
    return True


def _position_behind(world: World, archived: int) -> Position:
    """A reader's position after the archive's last record, in the lost topic."""
    topic = world.topic
    applied = Applier(MemoryIndex(), topic.topic_id, world.salvages).apply(topic.records(0, archived))
    return applied.position


def _survivors(world: World, base: Position) -> Survivors:
    tables = world.primary.tables
    published = -1 if tables.position is None else tables.position.offset
    kept = [completion for at, completion in tables.completions if at > tables.pruned_to]
    return Survivors(
        archive_id="simulated",
        base=base,
        indexes=[
            _tail_of(replica.name, replica.disk, position, base)
            for replica in world.replicas
            if (position := replica.disk.position()) is not None
        ],
        published=published,
        completions=[completion for completion in kept if completion.log_offset > base.offset],
        complete_from=complete_from(base, tables.pruned_to, kept[0] if kept else None, published),
        ledger_end=tables.ledger_end,
        earlier=list(world.salvages.held.values()),
    )


def _tail_of(name: str, disk: Disk, position: Position, base: Position) -> IndexTail:
    """What an index has after what is left."""
    return IndexTail(name, position, {key: value for key, value in disk.entries() if recorded_at(value) > base.offset})


def _restore(world: World, archived: int, salvage: Salvage) -> None:
    """A new topic: records on their way to the lost one never arrive."""
    old = world.topic
    world.forgotten |= submissions_in(old.values[archived:])
    world.topic = Topic(world.story, f"{old.topic_id}+")
    lost = [salvage.lost_record(offset) for offset in range(salvage.first, salvage.last + 1)]
    for value in (*old.values[:archived], *lost):
        world.topic.store(value)
    world.hold_salvage(salvage)


def submissions_in(records: Sequence[bytes]) -> set[tuple[str, str]]:
    """Command and submission id of requests of format 2: what the database does not remember before it is published."""
    found = set()
    for value in records:
        with suppress(Undecodable):
            record = decode_record(value, 2)
            if isinstance(record, RequestRecord):
                found.add((signed_in(record).terms.command_id, record.submission_id))
    return found


def _adopt(tables: Tables, topic_id: str, salvage: Salvage) -> None:
    if tables.position is not None:
        tables.position = position_in(tables.position, topic_id, salvage)
    tables.topic_id = bound_name(tables.topic_id, topic_id, salvage.digest)
    tables.forget_history()
