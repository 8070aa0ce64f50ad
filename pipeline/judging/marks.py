"""Sets of log offsets as bits: small enough to be asked about every claim."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pipeline.judging.cursor import Array


def offsets_marked(offsets: Iterable[int], end_offset: int) -> Array:
    """A bit for each offset below `end_offset`, set for these."""
    bits = np.zeros(end_offset // 8 + 1, np.uint8)
    at = np.fromiter(offsets, np.int64)
    np.bitwise_or.at(bits, at >> 3, np.left_shift(1, at & 7).astype(np.uint8))
    return bits


def is_marked(bits: Array, offsets: Array) -> Array:
    """Which of these offsets have their bit set."""
    at = offsets.astype(np.int64)
    found: Array = bits[at >> 3] >> (at & 7).astype(np.uint8) & 1 != 0
    return found
