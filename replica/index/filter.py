"""A filter over keys: it says "absent" of nearly every absent key, and of no key that was added. Pure.

It is a register-blocked Bloom filter: a key sets some bits of one word of 64, and may be there if they are all set.
Word and bits come from two multilinear hashes with secret random factors, so nobody can choose keys that collide. The
filter grows by further blocks, each twice the last; a key that was added is in one of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import reduce
from hashlib import sha256, shake_256
from itertools import repeat

import numpy as np
import numpy.typing as npt

SEED_BYTES = 32
KEY_BYTES_MAX = 48  # what a longer key has beyond is not hashed
BITS_OF_A_KEY = 5  # at most: some are the same
KEYS_OF_A_WORD = 4  # in a full block: 16 bits a key, of which one in 200 absent keys is taken for a present one
_PIECES = KEY_BYTES_MAX // 4
_PATTERN_BITS = 14  # so many patterns of bits fit a processor's cache
_HALF = np.array(32, np.uint64)  # arrays, and places as signed integers: NumPy is twice as fast with these
_OTHERS = np.array(64 - _PATTERN_BITS, np.uint64)
_TOGETHER = 32  # keys that are padded by one call, which takes a fifth of the time of NumPy's own way
_pad = struct.Struct(f"{KEY_BYTES_MAX}s" * _TOGETHER).pack
_HEAD = struct.Struct(f"<{SEED_BYTES}sQQq")  # seed, number of blocks, words of the first one, room in the last one
_DIGEST_BYTES = 32
_BODY = _DIGEST_BYTES + _HEAD.size
_SAMPLES = [bytes(range(1, length)) for length in range(1, KEY_BYTES_MAX + 2)]

Words = npt.NDArray[np.uint64]


class Filter:
    """All keys that were added, and by mistake a few others."""

    def __init__(self, seed: bytes, capacity: int) -> None:
        """An empty one. `seed`: random and secret. `capacity`: how many keys its first block has room for."""
        self._seed = seed
        factors_bytes = _PIECES * 2 * 8
        material = shake_256(seed).digest(factors_bytes + (BITS_OF_A_KEY << _PATTERN_BITS))
        self._factors = tuple(np.frombuffer(material, "<u8", _PIECES * 2).reshape(2, _PIECES))
        places = np.frombuffer(material, np.uint8, offset=factors_bytes).reshape(-1, BITS_OF_A_KEY) % 64
        self._patterns: Words = np.bitwise_or.reduce(np.uint64(1) << places.astype(np.uint64), axis=1)
        self._blocks: list[Words] = []
        self._room = 0
        self._grow(-(-capacity // KEYS_OF_A_WORD))

    @property
    def block_count(self) -> int:
        """How many blocks an absent key is asked of; each adds its share of mistakes."""
        return len(self._blocks)

    @property
    def byte_count(self) -> int:
        """The memory of all blocks."""
        return sum(block.nbytes for block in self._blocks)

    def add(self, keys: Sequence[bytes]) -> None:
        """Add keys, all to the last block."""
        if self._room <= 0:
            self._grow(2 * len(self._blocks[-1]))
        hashes, patterns = self._hashed(keys)
        block = self._blocks[-1]
        np.bitwise_or.at(block, _places(hashes, block), patterns)  # `|=` loses bits where keys share a word
        self._room -= len(keys)

    def perhaps(self, keys: Sequence[bytes]) -> list[int]:
        """The places in `keys` of those that may have been added. All others are absent."""
        hashes, patterns = self._hashed(keys)
        in_blocks = [block[_places(hashes, block)] & patterns == patterns for block in self._blocks]
        found: list[int] = reduce(np.logical_or, in_blocks).nonzero()[0].tolist()
        return found

    def stored(self, bound_to: bytes) -> list[bytes | memoryview]:
        """What its file has, in parts. `bound_to`: 32 bytes that say of what keys it is."""
        head = _HEAD.pack(self._seed, len(self._blocks), len(self._blocks[0]), self._room)
        digest = sha256(bound_to + head)
        for part in (*self._hashed(_SAMPLES), *self._blocks):  # a release that hashes otherwise cannot take it
            digest.update(part.data)
        return [digest.digest(), head, *(block.data for block in self._blocks)]

    def _grow(self, words: int) -> None:
        self._blocks.append(np.zeros(max(1, words), np.uint64))
        self._room = len(self._blocks[-1]) * KEYS_OF_A_WORD

    def _hashed(self, keys: Sequence[bytes]) -> tuple[Words, Words]:
        """32 bits for the choice of a word, and the pattern, of each key."""
        filled = [*keys, *repeat(b"", -len(keys) % _TOGETHER)]
        padded = b"".join([_pad(*filled[at : at + _TOGETHER]) for at in range(0, len(keys), _TOGETHER)])
        pieces = np.frombuffer(padded, "<u4", len(keys) * _PIECES).reshape(-1, _PIECES).astype(np.uint64)
        for_word, for_pattern = self._factors
        return pieces @ for_word >> _HALF, self._patterns[(pieces @ for_pattern >> _OTHERS).view(np.int64)]


def restored(raw: npt.NDArray[np.uint8], bound_to: bytes) -> Filter | None:
    """The filter of a file's bytes, which it goes on to use; None unless they are what `stored` made, with the same
    `bound_to`."""
    if len(raw) < _BODY:
        return None
    seed, blocks, words, room = _HEAD.unpack(raw[_DIGEST_BYTES:_BODY].tobytes())
    if blocks > 32 or len(raw) - _BODY != words * ((1 << blocks) - 1) * 8:
        return None
    made = Filter(seed, 0)
    ends = [words * ((2 << number) - 1) for number in range(blocks)]
    made._blocks, made._room = np.split(raw[_BODY:].view(np.uint64), ends[:-1]), room
    return made if raw[:_DIGEST_BYTES].tobytes() == made.stored(bound_to)[0] else None


def _places(hashes: Words, block: Words) -> npt.NDArray[np.int64]:
    """Which word of a block each key has."""
    return (hashes * np.array(len(block), np.uint64) >> _HALF).view(np.int64)
