"""Passes rows from slices of the log to ranges of keys: a file for each slice, of which each range reads a part.

Rows are claims (judging/claims.py) or commands (judging/commands.py), of one type in a file.

The file begins with the offset of each range's part: 8 bytes for each range, and 8 for the end of the last.

A job that makes something as large as its rows frees the parts that it has read. Python has no call for a hole in a
file, so this is the C library's.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.judging.cursor import Array
from replica.notary.errors import InvariantBroken

_EDGE_BYTES = 8
_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02  # of fallocate(2)


def write_parts(path: Path, rows: Array, starts: Array) -> None:
    """Write a slice's rows, range by range, and where each range starts."""
    edges = len(starts) * _EDGE_BYTES + starts.astype(np.int64) * rows.itemsize
    with path.open("wb") as file:
        file.write(edges.astype("<i8").tobytes())
        file.write(rows.data if rows.flags.c_contiguous else rows.tobytes())


def read_range(paths: Sequence[str], number: int, dtype: np.dtype[Any]) -> Array:
    """All rows of one range of keys, in the order of the files. Raises InvariantBroken when a file is cut."""
    parts = [(path, *_edges(path, number)) for path in paths]
    _fetch(parts)
    raw = np.empty(sum(end - start for _, start, end in parts), np.uint8)
    filled = 0
    for path, start, end in parts:
        if end > start:
            with open(path, "rb", buffering=0) as file:
                file.seek(start)
                if file.readinto(raw[filled : filled + end - start].data) != end - start:
                    raise InvariantBroken(f"{path} ends before its part for range {number}")
            filled += end - start
    return raw.view(dtype)


def _fetch(parts: Sequence[tuple[str, int, int]]) -> None:
    """Have the system read all parts at once. One after the other, each waits for the disk: there are hundreds of them,
    of some ten kilobytes."""
    for path, start, end in parts:
        if end > start:
            with open(path, "rb", buffering=0) as file:
                os.posix_fadvise(file.fileno(), start, end - start, os.POSIX_FADV_WILLNEED)


def free_ranges(paths: Sequence[str], first: int, end: int) -> None:
    """Give the disk back what the ranges from `first` to before `end` take; they can no longer be read.

    A file system that cannot do this keeps them.
    """
    punch = ctypes.CDLL(None).fallocate
    punch.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    for path in paths:
        start, _ = _edges(path, first)
        _, stop = _edges(path, end - 1)
        if stop > start:
            with open(path, "r+b", buffering=0) as file:
                punch(file.fileno(), _KEEP_SIZE_PUNCH_HOLE, start, stop - start)


def _edges(path: str, number: int) -> tuple[int, int]:
    with open(path, "rb", buffering=0) as file:
        file.seek(number * _EDGE_BYTES)
        start, end = np.frombuffer(file.read(2 * _EDGE_BYTES), "<i8").tolist()
    return start, end
