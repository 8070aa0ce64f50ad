"""Makes a tail salvage from what survives a log that lost its end: the replicas' indexes, the database's completions.

An index has everything that the records up to its position decided, and no more. Completions show which transactions
were notarised up to the published offset, but not which states they consumed. Two sources must agree on each offset
that both cover: this module never guesses which of them is right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from replica.index.compare import recorded_at
from replica.index.rocks import StoredIndex, read_index
from replica.notary.errors import RestoreRefused, SalvageDamaged
from replica.notary.position import BEGIN, Position, encode_position
from replica.notary.rules import TX_KEY
from replica.notary.salvage import (
    ENTRIES_MAX,
    SALVAGE_VERSION,
    LostEntry,
    Salvage,
    SalvageHeader,
    check_record,
)
from replica.store.interface import NOTARISED, Completion

_DIGEST_BYTES = 32


class IndexTail(msgspec.Struct, frozen=True):
    """What a surviving index recorded after what is left of the log: key and value."""

    name: str
    position: Position
    entries: dict[bytes, bytes]


class Survivors(msgspec.Struct, frozen=True, kw_only=True):
    """What is left of a log of which the archive, a copy or the log itself ends with `base`, a position in it.

    published: the offset that completions are published up to, -1 for none. completions: those of lost records, in log
    order; all from log offset `complete_from` on, older ones may be pruned. ledger_end: the last ledger offset of the
    completions. marks: positions that others saw the log at. exposed: how many answered records there may have been
    after all of these. earlier: salvages of the log that was lost, which the database demands: it was restored before.
    """

    archive_id: str
    base: Position
    indexes: Sequence[IndexTail]
    published: int
    completions: Sequence[Completion]
    complete_from: int
    ledger_end: int = 0
    marks: Sequence[Position] = ()
    exposed: int = 0
    earlier: Sequence[Salvage] = ()

    @property
    def knows_anything(self) -> bool:
        """Whether there is any source for how far the log went."""
        return bool(self.indexes or self.marks or self.earlier or self.published > BEGIN)


def read_tail(name: str, folder: Path, base: Position) -> IndexTail:
    """What an index, which no process has open, recorded after `base`; all its checksums are verified.

    Raises IndexUnreadable, and RestoreRefused when it has nothing applied, or more than a salvage takes.
    """
    with read_index(folder) as index:
        if index.position is None:
            raise RestoreRefused(f"the index of {name} has nothing applied: leave it out")
        return IndexTail(name, index.position, _recorded_after(base, name, index))


def _recorded_after(base: Position, name: str, index: StoredIndex) -> dict[bytes, bytes]:
    entries: dict[bytes, bytes] = {}
    count = 0
    for key, value in index.entries:
        count += 1
        if recorded_at(value) > base.offset:
            entries[key] = value
            if len(entries) > ENTRIES_MAX:
                raise RestoreRefused(f"{name} recorded over {ENTRIES_MAX} entries that the log lacks")
    if count != index.entry_count:
        raise RestoreRefused(f"the index of {name} has {count} of {index.entry_count} entries: leave it out")
    return entries


def merge(survivors: Survivors, *, at_us: int, public_key: bytes) -> tuple[SalvageHeader, list[LostEntry]]:
    """The decisions that survive in the lost range, and the header for them.

    Raises RestoreRefused when nothing was lost, or two sources disagree: then a person must find out which is wrong.
    """
    base = survivors.base
    indexes = [*survivors.indexes, *(_known_by(one, base) for one in survivors.earlier if one.last > base.offset)]
    for index in indexes:
        _check_index(index, base)
    furthest = max(indexes, key=lambda index: index.position.offset, default=None)
    applied = BEGIN if furthest is None else furthest.position.offset
    _check_marks(survivors)
    mark = max((one.offset for one in survivors.marks), default=BEGIN)
    known = max(applied, survivors.published, mark)
    last = max(base.offset, known) + survivors.exposed
    if last <= base.offset:
        raise RestoreRefused(f"nothing is lost: the log is there up to {base.offset}, known is up to {known}")
    entries = {} if furthest is None else dict(furthest.entries)
    if furthest is not None:
        for index in indexes:
            _check_agree(furthest, index)
    first_times = _notarised_first(survivors)
    if furthest is not None and applied > base.offset:
        _check_published(survivors, furthest, first_times)
    elif survivors.complete_from > base.offset + 1:
        _refuse("completions of lost records are pruned, and no index has them")
    beyond = {key: value for key, value in first_times.items() if recorded_at(value) > applied}
    for key in beyond.keys() & entries.keys():
        _refuse(f"transaction {key[1:].hex()} is notarised in the index of {_name(furthest)} and again by completions")
    entries |= beyond
    _check_repeats(survivors, entries)
    header = SalvageHeader(
        SALVAGE_VERSION,
        survivors.archive_id,
        base.topic_id,
        encode_position(base),
        last,
        applied,
        survivors.published,
        mark,
        survivors.exposed,
        max(survivors.ledger_end, base.ledger_offset),
        _judged_us(survivors, indexes),
        tuple((index.name, index.position.offset) for index in indexes),
        len(entries),
        len(beyond),
        at_us,
        public_key,
    )
    return header, [LostEntry(recorded_at(value), key, value) for key, value in entries.items()]


def _judged_us(survivors: Survivors, indexes: Iterable[IndexTail]) -> int:
    """The newest time judged that anybody knows, microseconds UTC."""
    seen = [survivors.base, *survivors.marks, *[index.position for index in indexes]]
    return max([position.stamp_us for position in seen] + [one.recorded_us for one in survivors.completions])


def _check_marks(survivors: Survivors) -> None:
    """Check that each mark is of the lost log, and that a record that is left is the one that it names."""
    base = survivors.base
    for mark in survivors.marks:
        if mark.topic_id != base.topic_id:
            _refuse(f"a mark at offset {mark.offset} is of log {mark.topic_id}, and not of {base.topic_id}")
        if mark.offset == base.offset and mark.digest != base.digest:
            _refuse(f"a mark names another record at offset {mark.offset} than the one that is left")


def _known_by(earlier: Salvage, base: Position) -> IndexTail:
    """An earlier salvage as the tail of an index that has read to the end of its lost range."""
    entries = {entry.key: entry.value for entry in earlier.entries() if entry.offset > base.offset}
    return IndexTail(f"salvage {earlier.digest.hex()}", earlier.position_at(earlier.last, base.topic_id), entries)


def _check_index(index: IndexTail, base: Position) -> None:
    """Check that an index is of the lost topic, continues from the archive's end, and has whole transactions only."""
    position = index.position
    if position.topic_id != base.topic_id:
        _refuse(f"the index of {index.name} is of topic id {position.topic_id}, the archive of {base.topic_id}")
    if position.offset > base.offset:
        same_barrier = (position.barrier, position.barrier_offset) == (base.barrier, base.barrier_offset)
        newer_barrier = position.barrier_offset > base.offset and position.epoch > base.epoch
        if not (same_barrier or newer_barrier) or position.stamp_us < base.stamp_us:
            _refuse(f"the index of {index.name} does not go on from where the archive ends")
    elif position.offset == base.offset and position.digest != base.digest:
        _refuse(f"the index of {index.name} was read from another record at offset {base.offset} than the archive's")
    for offset, entries in _by_offset(index.entries).items():
        if offset > position.offset:
            _refuse(f"the index of {index.name} is applied to {position.offset}, and recorded something at {offset}")
        try:
            check_record(offset, entries)
        except SalvageDamaged as error:
            _refuse(f"the index of {index.name}: {error.detail}")


def _check_agree(furthest: IndexTail, other: IndexTail) -> None:
    until = other.position.offset
    if until == furthest.position.offset and other.position.digest != furthest.position.digest:
        _refuse(f"the indexes of {furthest.name} and {other.name} were read from different records at offset {until}")
    ours = {key: value for key, value in furthest.entries.items() if recorded_at(value) <= until}
    for key in sorted(ours.keys() | other.entries.keys()):
        if ours.get(key) != other.entries.get(key):
            _refuse(f"the indexes of {furthest.name} and {other.name} differ in key {key.hex()}")


def _notarised_first(survivors: Survivors) -> dict[bytes, bytes]:
    """Index entries of the transactions that, by their completions, were notarised by their own, lost record."""
    found: dict[bytes, bytes] = {}
    for one in survivors.completions:
        if one.outcome == NOTARISED and one.notarised_offset == one.log_offset:
            key = TX_KEY + one.tx_id
            if key in found:
                _refuse(f"transaction {one.tx_id.hex()} has two completions that notarise it first")
            found[key] = one.content_digest + one.log_offset.to_bytes(8, "big")
    return found


def _check_published(survivors: Survivors, index: IndexTail, published: dict[bytes, bytes]) -> None:
    """Check that index and completions, where both cover an offset, name the same transactions, content and offset.

    Entries that an earlier salvage took from an index have no completion if none was published before, and get none.
    """
    first, last = survivors.complete_from, min(survivors.published, index.position.offset)
    if survivors.published > index.position.offset and first > index.position.offset + 1:
        _refuse("completions of lost records are pruned, and no index has them")
    recorded = {key: value for key, value in index.entries.items() if key[:1] == TX_KEY}
    for key in sorted(recorded.keys() | published.keys()):
        ours, theirs = recorded.get(key), published.get(key)
        if theirs is None and ours is not None and _lost_before(survivors, recorded_at(ours)):
            continue
        offsets = [recorded_at(value) for value in (ours, theirs) if value is not None]
        if ours != theirs and any(first <= offset <= last for offset in offsets):
            _refuse(
                f"transaction {key[1:].hex()} at offset {min(offsets)}: the index of {index.name} and the completions"
                " do not say the same of it"
            )


def _lost_before(survivors: Survivors, offset: int) -> bool:
    return any(one.first <= offset <= one.last for one in survivors.earlier)


def _check_repeats(survivors: Survivors, entries: dict[bytes, bytes]) -> None:
    """Check that a completion which points at an earlier lost record belongs to a transaction known there."""
    for one in survivors.completions:
        offset = one.notarised_offset
        if one.outcome != NOTARISED or offset is None or offset <= survivors.base.offset:
            continue
        if entries.get(TX_KEY + one.tx_id) != one.content_digest + offset.to_bytes(8, "big"):
            _refuse(f"a completion says that {one.tx_id.hex()} was notarised at offset {offset}; nobody else does")


def complete_from(base: Position, pruned_to: int, first_kept: Completion | None, published: int) -> int:
    """The log offset from which no completion was pruned. `first_kept`: the oldest completion that is left."""
    if not pruned_to or (first_kept is not None and first_kept.log_offset <= base.offset):
        return base.offset + 1
    return published + 1 if first_kept is None else first_kept.log_offset + 1


def _by_offset(entries: dict[bytes, bytes]) -> dict[int, list[LostEntry]]:
    found: defaultdict[int, list[LostEntry]] = defaultdict(list)
    for key, value in entries.items():
        found[recorded_at(value)].append(LostEntry(recorded_at(value), key, value))
    return found


def states_unknown(entries: Iterable[LostEntry], applied: int) -> Iterator[bytes]:
    """Transactions that stay notarised although the states that they consumed are unknown."""
    return (entry.key[1:] for entry in entries if entry.offset > applied and entry.key[:1] == TX_KEY)


def _name(index: IndexTail | None) -> str:
    return "nobody" if index is None else index.name


def _refuse(problem: str) -> NoReturn:
    raise RestoreRefused(problem)
