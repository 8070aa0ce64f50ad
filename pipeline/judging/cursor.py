"""Parses many byte strings at once with array operations: each step reads one field of every string."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

PADDING = 1 << 10  # zeros after the last byte string: reads past it stay inside the buffer, and find no header there

_UINT_SIZE = np.zeros(256, np.int64)  # of a MessagePack unsigned integer, by its first byte; 0: it is none
_UINT_SIZE[:0x80] = 1
_UINT_SIZE[[0xCC, 0xCD, 0xCE, 0xCF]] = 2, 3, 5, 9
_BIN_HEAD = np.zeros(256, np.int64)  # of a byte string's head
_BIN_HEAD[[0xC4, 0xC5, 0xC6]] = 2, 3, 5
_STR_HEAD = np.zeros(256, np.int64)
_STR_HEAD[0xA0:0xC0] = 1
_STR_HEAD[[0xD9, 0xDA, 0xDB]] = 2, 3, 5


def gather(raw: Array, positions: Array, dtype: str) -> Array:
    """The elements of `dtype` at byte positions, aligned or not."""
    size = np.dtype(dtype).itemsize
    everywhere = np.ndarray((len(raw) - size + 1,), f"V{size}", raw.data, strides=(1,))
    return everywhere[positions].view(dtype)


def spread(starts: Array, counts: Array, step: int) -> tuple[Array, Array]:
    """Positions of runs of `counts` items, `step` bytes each, and which run each belongs to."""
    owner = np.repeat(np.arange(len(counts)), counts)
    ends = np.cumsum(counts)
    within = np.arange(len(owner)) - np.repeat(ends - counts, counts)
    return owner, starts[owner] + step * within


class Walk:
    """Parses all records of a slice at once: `at` is the read position in each, `fits` whether it is usual so far."""

    def __init__(self, raw: Array, at: Array) -> None:
        self._raw = raw
        self._last = len(raw) - 512 - 8  # from here on there is padding only: a text may still be read there
        self.at = at.copy()
        self.fits = np.ones(len(at), np.bool_)

    def bytes(self) -> Array:
        return self._raw[self.at]

    def pairs(self) -> Array:
        return gather(self._raw, self.at, ">u2")

    def words(self, ahead: int) -> Array:
        return gather(self._raw, self.at + ahead, ">u8").astype(np.uint64)

    def expect(self, holds: Array, size: int | Array) -> None:
        """Go on after the next `size` bytes, which are as they should be where `holds`."""
        self.fits &= holds
        self.skip(size)

    def skip(self, size: int | Array) -> Array:
        """Go on after the next bytes; returns where they are."""
        before = self.at
        self.at = np.minimum(before + size, self._last)
        return before

    def uint(self) -> Array:
        """An integer from 0 to 2**63 - 1."""
        head = self.bytes()
        size = _UINT_SIZE[head]
        value = np.where(size > 1, _leading(self.words(1), size - 1), head)
        self.expect((size > 0) & (value >= 0), size)
        return value

    def binary(self) -> tuple[Array, Array]:
        """A byte string: where it is, and its size."""
        head_bytes = _BIN_HEAD[self.bytes()]
        size = _leading(self.words(1), head_bytes - 1)
        self.expect(head_bytes > 1, head_bytes)
        return self.skip(size), size

    def text(self, max_bytes: int) -> None:
        """A text of 1 to `max_bytes` printable ASCII characters."""
        head_bytes, size = _text_head(self._raw, self.at)
        self.expect((head_bytes > 0) & (size > 0) & (size <= max_bytes), head_bytes)
        at = self.skip(size)
        self.fits &= printable(self._raw, at, np.where(self.fits, size, 0))


def printable(raw: Array, at: Array, size: Array) -> Array:
    """Whether the text of `size` bytes at each position is printable ASCII."""
    fits = np.ones(len(at), np.bool_)
    rest = np.flatnonzero(size > 0)
    position, left = at[rest], size[rest]
    high, low_bits = np.uint64(0x8080808080808080), np.uint64(0x2020202020202020)
    while len(rest):
        word = gather(raw, position, ">u8").astype(np.uint64)
        kept = np.minimum(left, 8)
        shift = (8 * (8 - kept)).astype(np.uint64)  # bytes after the text are replaced by spaces
        word = (word >> shift << shift) | (low_bits & ~(~np.uint64(0) << shift))
        below = (word - low_bits) & ~word & high  # a byte below the space; borrows only raise more doubts
        above = ((word & ~high) + np.uint64(0x0101010101010101)) & high  # 0x7f
        fits[rest[(below | above | (word & high)) != 0]] = False
        more = left > 8
        rest, position, left = rest[more], position[more] + 8, left[more] - 8
    return fits


def _text_head(raw: Array, at: Array) -> tuple[Array, Array]:
    """Of the text that begins at each position: the bytes of its head (0: none begins there), and its size."""
    head = raw[at]
    head_bytes = _STR_HEAD[head]
    leading = gather(raw, at + 1, ">u8").astype(np.uint64)
    return head_bytes, np.where(head_bytes > 1, _leading(leading, head_bytes - 1), head & 0x1F)


def _leading(words: Array, size: Array) -> Array:
    """The big-endian integer in the first `size` bytes of each word, 1 to 8; undefined for other sizes."""
    leading: Array = words >> (8 * (8 - np.clip(size, 1, 8))).astype(np.uint64)
    return leading.astype(np.int64)
