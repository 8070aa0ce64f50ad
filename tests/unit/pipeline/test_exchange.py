"""Rows by ranges of keys, in the files of slices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pipeline.jobs.exchange import free_ranges, read_range, write_parts
from replica.notary.errors import InvariantBroken

ROW = np.dtype([("key", "S64"), ("offset", ">u8")])
RANGES, RANGE_ROWS = 8, 10_000


def _written(folder: Path, slices: int) -> tuple[list[str], list[np.ndarray]]:
    paths, written = [], []
    for number in range(slices):
        rows = np.zeros(RANGES * RANGE_ROWS, ROW)
        rows["offset"] = np.arange(len(rows)) + number * len(rows)
        rows["key"] = b"k" * 64
        paths.append(str(folder / f"slice-{number}"))
        write_parts(Path(paths[-1]), rows, np.arange(RANGES + 1) * RANGE_ROWS)
        written.append(rows)
    return paths, written


def _expected(written: list[np.ndarray], number: int) -> np.ndarray:
    return np.concatenate([rows[number * RANGE_ROWS : (number + 1) * RANGE_ROWS] for rows in written])


def _disk_bytes(paths: list[str]) -> int:
    return sum(Path(path).stat().st_blocks * 512 for path in paths)


def test_freed_ranges_take_no_disk_and_the_others_are_whole(tmp_path: Path) -> None:
    """Goal: a job's own output takes the place of what it has read. Method: the first ranges are freed, then some in
    the middle; blocks of the files, and each row of the other ranges."""
    paths, written = _written(tmp_path, 3)
    whole = _disk_bytes(paths)
    free_ranges(paths, 0, 3)
    free_ranges(paths, 5, 6)
    assert _disk_bytes(paths) < whole * 0.55  # four eighths, and a block at each end
    for number in (3, 4, 6, 7):
        assert np.array_equal(read_range(paths, number, ROW), _expected(written, number))
    free_ranges(paths, 3, RANGES)
    assert _disk_bytes(paths) < whole * 0.05


def test_ranges_without_rows_are_freed_as_well(tmp_path: Path) -> None:
    """Goal: nothing of a neighbour goes with them. Method: a slice that has rows of one range alone."""
    rows = np.zeros(RANGE_ROWS, ROW)
    rows["offset"] = np.arange(RANGE_ROWS)
    path = tmp_path / "slice"
    write_parts(path, rows, np.array([0, 0, RANGE_ROWS, RANGE_ROWS]))
    free_ranges([str(path)], 0, 1)
    free_ranges([str(path)], 2, 3)
    assert np.array_equal(read_range([str(path)], 1, ROW), rows)


def test_a_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    """Goal: rows that are not there are not made up. Method: a file without its last bytes."""
    paths, _ = _written(tmp_path, 1)
    with Path(paths[0]).open("r+b") as file:
        file.truncate(Path(paths[0]).stat().st_size - 1)
    with pytest.raises(InvariantBroken, match="ends before its part"):
        read_range(paths, RANGES - 1, ROW)
