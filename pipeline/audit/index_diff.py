"""Compares an index with another one, or with what the database published.

Nothing here needs Spark: indexes are read in key order, completions in ledger order, and memory stays bounded.
`pipeline.jobs.rebuild` makes an index to compare with from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from replica.index.compare import Difference, differences, recorded_at
from replica.index.rocks import StoredIndex, read_commands, read_index, read_parties
from replica.notary.acceptances import COMMAND_KEY, encode_acceptance, first_key, later_key
from replica.notary.errors import LogRefused
from replica.notary.position import BEGIN
from replica.notary.rules import TX_KEY
from replica.store.facts import Export
from replica.store.interface import NOTARISED, Completion
from replica.store.open import export_completions, published_state

_LOOKED_UP_TOGETHER = 1_000


class IndexDiff(msgspec.Struct, frozen=True):
    """The outcome of a comparison up to and with `until_offset`; `first` has the first differences, by key or ledger.

    `first_offset`: the lowest log offset of all differences that have one. `unpublished_count`: entries of the index
    that have no completion in the database. `commands`: the same of the acceptances of commands; None where one side
    has no table of them, because an older release wrote it or it is not made yet. `parties`: likewise officers and
    registrations, which a ledger does not have.
    """

    until_offset: int
    difference_count: int
    first_offset: int | None
    first: tuple[Difference, ...]
    unpublished_count: int = 0
    commands: IndexDiff | None = None
    parties: IndexDiff | None = None

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        here = not self.difference_count and not self.unpublished_count
        return here and all(table is None or table.same for table in (self.commands, self.parties))


def diff_indexes(left: Path, right: Path, first_max: int = 10) -> IndexDiff:
    """Compare two indexes that nobody writes, as far as both have come, and their tables of commands and parties.

    Raises IndexUnreadable, and LogRefused when they were made from different topics.
    """
    with read_index(left) as one, read_index(right) as other:
        states = _diff_tables(one, other, first_max)
    with read_commands(left) as own, read_commands(right) as others:
        commands = _diff_if_both(own, others, first_max)
    with read_parties(left) as own, read_parties(right) as others:
        parties = _diff_if_both(own, others, first_max)
    return msgspec.structs.replace(states, commands=commands, parties=parties)


def _diff_if_both(one: StoredIndex | None, other: StoredIndex | None, first_max: int) -> IndexDiff | None:
    return None if one is None or other is None else _diff_tables(one, other, first_max)


def _diff_tables(one: StoredIndex, other: StoredIndex, first_max: int) -> IndexDiff:
    if one.position and other.position and one.position.topic_id != other.position.topic_id:
        raise LogRefused(f"the indexes are of topics {one.position.topic_id} and {other.position.topic_id}")
    until = min(_offset(one), _offset(other))
    return _diff(until, differences(one.entries, other.entries, until), first_max)


def diff_index_database(folder: Path, conninfo: str, first_max: int = 10) -> IndexDiff:
    """Compare an index with the completions: every notarised one has its entry, and every such entry its completion.

    So has every success that is no deduplicated one its acceptance. Raises IndexUnreadable, StoreUnavailable,
    StoreMismatch, and LogRefused when they belong to different topics.
    """
    with read_index(folder) as index:
        states = _diff_database(index, conninfo, first_max, _OF_TRANSACTIONS)
    with read_commands(folder) as commands:
        if commands is None:
            return states
        of_commands = _diff_database(commands, conninfo, first_max, _OF_COMMANDS)
        return msgspec.structs.replace(states, commands=of_commands)


class _Recorded(NamedTuple):
    """What completions have in a table: which of them, under which keys, one or the other, and with which value."""

    has: Callable[[Completion], bool]
    keys: Callable[[Completion], Sequence[bytes]]
    value: Callable[[Completion], bytes]
    kind: bytes


_OF_TRANSACTIONS = _Recorded(
    lambda one: one.outcome == NOTARISED and one.notarised_offset == one.log_offset,
    lambda one: [TX_KEY + one.tx_id],
    lambda one: one.content_digest + one.log_offset.to_bytes(8, "big"),
    TX_KEY,
)
_OF_COMMANDS = _Recorded(
    lambda one: one.outcome == NOTARISED,
    lambda one: [later_key(one.change_id, one.log_offset), first_key(one.change_id)],
    lambda one: encode_acceptance(one.tx_id, one.content_digest, one.recorded_us, one.log_offset),
    COMMAND_KEY,
)


def _diff_database(index: StoredIndex, conninfo: str, first_max: int, recorded: _Recorded) -> IndexDiff:
    with export_completions(conninfo) as export:
        if index.position is not None and export.topic_id not in (None, index.position.topic_id):
            raise LogRefused(f"the ledger belongs to topic id {export.topic_id}, not {index.position.topic_id}")
        until = min(_offset(index), export.published_offset)
        pruned = published_state(conninfo).pruned_to > 0
        first, published = None, 0

        def wrong() -> Iterator[Difference]:
            nonlocal first, published
            for completion, key, value in _with_entries(index, _recording(export, until, recorded), recorded):
                first = completion.log_offset if first is None else first
                published += 1
                expected = recorded.value(completion)
                if value != expected:
                    yield Difference(key, value, expected)

        found = _diff(until, wrong(), first_max)
        start = 0 if not pruned else until + 1 if first is None else first
        entries = sum(key[:1] == recorded.kind and start <= recorded_at(value) <= until for key, value in index.entries)
        return msgspec.structs.replace(found, unpublished_count=max(0, entries - published + found.difference_count))


def _diff(until: int, found: Iterable[Difference], first_max: int) -> IndexDiff:
    count, first_offset = 0, None
    first: list[Difference] = []
    for difference in found:
        count += 1
        first_offset = difference.offset if first_offset is None else min(first_offset, difference.offset)
        if len(first) < first_max:
            first.append(difference)
    return IndexDiff(until, count, first_offset, tuple(first))


def _recording(export: Export, until: int, recorded: _Recorded) -> Iterator[Completion]:
    """Completions of records that have an entry in the table."""
    for _, completion in export.rows:
        if completion.log_offset > until:
            return  # the ledger has the log's order
        if recorded.has(completion):
            yield completion


def _with_entries(
    index: StoredIndex, completions: Iterator[Completion], recorded: _Recorded
) -> Iterator[tuple[Completion, bytes, bytes | None]]:
    """Each completion with the first of its keys that the table has, or the last one, and the value."""
    while together := list(islice(completions, _LOOKED_UP_TOGETHER)):
        keys = [recorded.keys(one) for one in together]
        values = iter(index.lookup(list(chain.from_iterable(keys))))
        for completion, own in zip(together, keys, strict=True):
            of_own = list(zip(own, islice(values, len(own)), strict=True))
            key, value = next((pair for pair in of_own if pair[1] is not None), of_own[-1])
            yield completion, key, value


def _offset(index: StoredIndex) -> int:
    return BEGIN if index.position is None else index.position.offset
