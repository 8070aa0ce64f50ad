"""Sets of sequence numbers, as positions store them: ascending ranges [start, end) that do not touch."""

from __future__ import annotations

import numpy as np

from pipeline.judging.cursor import Array

Ranges = tuple[tuple[int, int], ...]


def of_numbers(numbers: Array) -> Ranges:
    """The ranges of numbers that ascend, none of them twice."""
    if not len(numbers):
        return ()
    breaks = np.flatnonzero(np.diff(numbers) != 1)
    starts = numbers[np.concatenate(([0], breaks + 1))].tolist()
    lasts = numbers[np.concatenate((breaks, [len(numbers) - 1]))].tolist()
    return tuple((start, last + 1) for start, last in zip(starts, lasts, strict=True))  # beyond 64 bits, perhaps


def union(left: Ranges, right: Ranges) -> Ranges:
    """What is in one of them or both."""
    merged: list[list[int]] = []
    for start, end in sorted(left + right):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return tuple((start, end) for start, end in merged)


def common(left: Ranges, right: Ranges) -> Ranges:
    """What is in both."""
    found = []
    a = b = 0
    while a < len(left) and b < len(right):
        start, end = max(left[a][0], right[b][0]), min(left[a][1], right[b][1])
        if start < end:
            found.append((start, end))
        if left[a][1] < right[b][1]:
            a += 1
        else:
            b += 1
    return tuple(found)


def within(numbers: Array, ranges: Ranges) -> Array:
    """Which of the numbers lie in the ranges."""
    if not ranges:
        return np.zeros(len(numbers), np.bool_)
    starts = np.array([start for start, _ in ranges], np.int64)
    lasts = np.array([end - 1 for _, end in ranges], np.int64)
    at = np.searchsorted(starts, numbers, side="right") - 1
    return (at >= 0) & (numbers <= lasts[np.maximum(at, 0)])
