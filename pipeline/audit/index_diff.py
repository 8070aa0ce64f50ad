"""Compares an index with another one, or with what the database published.

Nothing here needs Spark: indexes are read in key order, completions in ledger order, and memory stays bounded.
`pipeline.jobs.rebuild` makes an index to compare with from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from replica.index.compare import Difference, differences, recorded_at
from replica.index.rocks import StoredIndex, read_index
from replica.notary.acceptances import COMMAND_KEY, encode_acceptance, first_key, later_key
from replica.notary.errors import LogRefused
from replica.notary.position import BEGIN
from replica.notary.rules import TX_KEY
from replica.store.facts import Export
from replica.store.interface import NOTARISED, Completion
from replica.store.open import export_completions, published_state

_LOOKED_UP_TOGETHER = 1_000
_OF_COMPLETIONS = TX_KEY + COMMAND_KEY  # kinds of entry that a completion has


class IndexDiff(msgspec.Struct, frozen=True):
    """The outcome of a comparison up to and with `until_offset`; `first` has the first differences, by key or ledger.

    `first_offset`: the lowest log offset of all differences that have one. `unpublished_count`: transactions and
    acceptances of the index that have no completion in the database.
    """

    until_offset: int
    difference_count: int
    first_offset: int | None
    first: tuple[Difference, ...]
    unpublished_count: int = 0

    @property
    def same(self) -> bool:
        """Whether there is no difference."""
        return not self.difference_count and not self.unpublished_count


def diff_indexes(left: Path, right: Path, first_max: int = 10) -> IndexDiff:
    """Compare two indexes that nobody writes, as far as both have come.

    Raises IndexUnreadable, and LogRefused when they were made from different topics.
    """
    with read_index(left) as one, read_index(right) as other:
        if one.position and other.position and one.position.topic_id != other.position.topic_id:
            raise LogRefused(f"the indexes are of topics {one.position.topic_id} and {other.position.topic_id}")
        until = min(_offset(one), _offset(other))
        return _diff(until, differences(one.entries, other.entries, until), first_max)


class _Recorded(NamedTuple):
    """What the index has of a completion: its value, under the first of these keys that is there."""

    completion: Completion
    keys: tuple[bytes, ...]
    value: bytes


def diff_index_database(folder: Path, conninfo: str, first_max: int = 10) -> IndexDiff:
    """Compare an index with the completions: every notarised one has its entry, and every such entry its completion.

    So has every success that is no deduplicated one its acceptance. Raises IndexUnreadable, StoreUnavailable,
    StoreMismatch, and LogRefused when they belong to different topics.
    """
    with read_index(folder) as index, export_completions(conninfo) as export:
        if index.position is not None and export.topic_id not in (None, index.position.topic_id):
            raise LogRefused(f"the ledger belongs to topic id {export.topic_id}, not {index.position.topic_id}")
        until = min(_offset(index), export.published_offset)
        pruned = published_state(conninfo).pruned_to > 0
        first, published = None, 0

        def wrong() -> Iterator[Difference]:
            nonlocal first, published
            for recorded, key, value in _with_entries(index, _recording(export, until)):
                first = recorded.completion.log_offset if first is None else first
                published += 1
                if value != recorded.value:
                    yield Difference(key, value, recorded.value)

        found = _diff(until, wrong(), first_max)
        start = 0 if not pruned else until + 1 if first is None else first
        entries = sum(
            key[:1] in _OF_COMPLETIONS and start <= recorded_at(value) <= until for key, value in index.entries
        )
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


def _recording(export: Export, until: int) -> Iterator[_Recorded]:
    """The entries that the completions must have."""
    for ledger_offset, one in export.rows:
        if one.log_offset > until:
            return  # the ledger has the log's order
        if one.outcome != NOTARISED:
            continue
        if one.notarised_offset == one.log_offset:
            yield _Recorded(one, (TX_KEY + one.tx_id,), one.content_digest + one.log_offset.to_bytes(8, "big"))
        acceptance = encode_acceptance(one.tx_id, one.content_digest, one.recorded_us, ledger_offset, one.log_offset)
        yield _Recorded(one, (later_key(one.change_id, one.log_offset), first_key(one.change_id)), acceptance)


def _with_entries(
    index: StoredIndex, recording: Iterator[_Recorded]
) -> Iterator[tuple[_Recorded, bytes, bytes | None]]:
    """Each with the first of its keys that the index has, or the last one, and the value."""
    while together := list(islice(recording, _LOOKED_UP_TOGETHER)):
        values = iter(index.lookup([key for one in together for key in one.keys]))
        for one in together:
            of_own = list(zip(one.keys, islice(values, len(one.keys)), strict=True))
            key, value = next((pair for pair in of_own if pair[1] is not None), of_own[-1])
            yield one, key, value


def _offset(index: StoredIndex) -> int:
    return BEGIN if index.position is None else index.position.offset
