"""Filling index and tables in bulk: what the rows look like, that they fit, and that a replica takes the result."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from replica.index.rocks import RocksIndex, verify_index
from replica.notary.acceptances import decode_acceptance
from replica.notary.position import POSITION_VERSION, Position
from tests.bench.bulk import (
    COMMAND,
    LEVEL_BASE_BYTES,
    ROWS_PER_FILE_MAX,
    STATE,
    TRANSACTION,
    DiskTooSmall,
    Kind,
    Part,
    bytes_needed,
    fill_index,
    level_files,
    level_shares,
    parts_of,
    pile_up,
    refuse_small_disk,
    rows_of,
)
from tests.bench.report import Report
from tests.bench.scale import add_ratios

OFFSETS = 1_000
AT = Position(POSITION_VERSION, b"L" * 16, "topic", OFFSETS, b"d" * 32)


def test_a_disk_that_is_too_small_is_refused_with_a_sentence() -> None:
    """Goal: nobody's disk is filled up. Method: as much as is needed without what must stay free, and with it."""
    needed = bytes_needed(100_000_000, 2)
    assert 20 << 30 < needed < 60 << 30
    with pytest.raises(DiskTooSmall, match=r"100,000,000 states need .* GiB of disk and .* are free: free some"):
        refuse_small_disk(100_000_000, 2, needed)
    refuse_small_disk(100_000_000, 2, needed + (4 << 30))


@pytest.mark.parametrize("size, levels", [(1 << 20, 1), (LEVEL_BASE_BYTES, 1), (1 << 30, 2), (10 << 30, 3)])
def test_levels_are_those_that_compaction_leaves(size: int, levels: int) -> None:
    """Goal: each level has a tenth of the next one."""
    shares = level_shares(size)
    assert len(shares) == levels and sum(shares) == pytest.approx(1.0)
    assert all(upper == pytest.approx(lower / 10) for lower, upper in itertools.pairwise(shares))


@pytest.mark.parametrize("count", [1, 7, 999_999, 100_000_000])
def test_parts_have_every_row_once_in_ranges_that_do_not_touch(count: int) -> None:
    """Goal: as many rows as were asked for; ranges of a level cover all keys; files are not too large."""
    parts = parts_of(STATE, count, level_shares(count * STATE.row_bytes))
    assert sum(part.count for part in parts) == count
    for level in {part.level for part in parts}:
        ranges = [part for part in parts if part.level == level]
        assert all(left.high <= right.low for left, right in itertools.pairwise(ranges))
        assert all(part.count <= 1.6 * ROWS_PER_FILE_MAX for part in ranges)


@pytest.mark.parametrize("kind", [STATE, TRANSACTION, COMMAND])
def test_rows_look_like_real_ones(kind: Kind) -> None:
    """Goal: keys in order, of the right range and size; values end in a log offset; states have small numbers."""
    rows = list(rows_of(Part(kind, 0, 16, 32, 2_000), OFFSETS, np.random.default_rng(1)))
    keys = [key for key, _ in rows]
    assert keys == sorted(set(keys)) and len(keys) == 2_000
    assert {key[:1] for key in keys} == {kind.prefix} and {key[1] for key in keys} == set(range(16, 32))
    assert {len(key) for key in keys} == {1 + kind.key_bytes}
    assert all(0 <= int.from_bytes(value[-8:], "big") < OFFSETS for _, value in rows)
    if kind is STATE:
        assert {int.from_bytes(key[-4:], "big") for key in keys} == {0, 1, 2, 3}
    if kind is COMMAND:
        assert decode_acceptance(rows[0][1]).offset < OFFSETS


@pytest.mark.thorough
def test_a_replica_takes_what_was_filled(tmp_path: Path) -> None:
    """Goal: what was there stays, the position too, the number of entries agrees, and files can wait on level 0.

    Method: an index with an entry and an acceptance, filled, then piled up, opened as a replica does each time.
    """
    folder = tmp_path / "index"
    index = RocksIndex(folder)
    index.write({b"s" + b"1" * 36: b"2" * 40, b"c" + b"3" * 32: b"4" * 80}, AT)
    index.close()
    fill_index(tmp_path / "tables", 40_000, [folder], OFFSETS)
    assert not (tmp_path / "tables").exists()
    index = RocksIndex(folder)
    assert (index.position(), index.entry_count) == (AT, 60_002)
    assert index.lookup([b"s" + b"1" * 36, b"s" + b"9" * 36]) == [b"2" * 40, None]
    index.close()
    added = pile_up(folder, 3, np.random.default_rng(1))
    assert level_files(folder)[0] >= 3
    assert verify_index(folder).entry_count == 60_002 + added


def test_the_lower_ratio_counts_while_level_0_waits() -> None:
    """Goal: one key stands for both loads. Method: batches suffer more than single requests."""
    report = Report()
    add_ratios(
        {"single": 100.0, "batch": 200.0}, {"single": 99.0, "batch": 190.0}, {"single": 90.0, "batch": 160.0}, report
    )
    assert report.figures["scale_single_ratio"] == 0.99
    assert report.figures["scale_batch_ratio"] == 0.95
    assert report.figures["scale_compacting_ratio"] == 0.8
