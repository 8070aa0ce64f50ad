"""Compares an index with another one, or with what the database published.

Nothing here needs Spark: indexes are read in key order, completions in ledger order, and memory stays bounded.
`pipeline.jobs.rebuild` makes an index to compare with from the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import msgspec

from replica.index.compare import Difference, differences, recorded_at
from replica.index.rocks import StoredIndex, read_index
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
    that have no completion in the database.
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


def diff_index_database(folder: Path, conninfo: str, first_max: int = 10) -> IndexDiff:
    """Compare an index with the completions: every notarised one has its entry, and every such entry its completion.

    Raises IndexUnreadable, StoreUnavailable, StoreMismatch, and LogRefused when they belong to different topics.
    """
    with read_index(folder) as index, export_completions(conninfo) as export:
        if index.position is not None and export.topic_id not in (None, index.position.topic_id):
            raise LogRefused(f"the database belongs to topic id {export.topic_id}, not {index.position.topic_id}")
        until = min(_offset(index), export.published_offset)
        pruned = published_state(conninfo).pruned_to > 0
        first, published = None, 0

        def wrong() -> Iterator[Difference]:
            nonlocal first, published
            for completion, value in _with_entries(index, _notarising(export, until)):
                first = completion.log_offset if first is None else first
                published += 1
                expected = completion.content_digest + completion.log_offset.to_bytes(8, "big")
                if value != expected:
                    yield Difference(TX_KEY + completion.tx_id, value, expected)

        found = _diff(until, wrong(), first_max)
        start = 0 if not pruned else until + 1 if first is None else first
        entries = sum(key[:1] == TX_KEY and start <= recorded_at(value) <= until for key, value in index.entries)
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


def _notarising(export: Export, until: int) -> Iterator[Completion]:
    """Completions of records that notarised, and not of repetitions."""
    for _, completion in export.rows:
        if completion.log_offset > until:
            return  # the ledger has the log's order
        if completion.outcome == NOTARISED and completion.notarised_offset == completion.log_offset:
            yield completion


def _with_entries(index: StoredIndex, completions: Iterator[Completion]) -> Iterator[tuple[Completion, bytes | None]]:
    while together := list(islice(completions, _LOOKED_UP_TOGETHER)):
        yield from zip(together, index.lookup([TX_KEY + one.tx_id for one in together]), strict=True)


def _offset(index: StoredIndex) -> int:
    return BEGIN if index.position is None else index.position.offset
