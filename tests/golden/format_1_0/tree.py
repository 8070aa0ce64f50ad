"""The tree of RFC 9162 (that of RFC 6962): a frontier that leaves are added to, and the root of a list."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

EMPTY_ROOT = sha256(b"").digest()


def node(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return sha256(b"\1" + left + right).digest()


def add(frontier: list[bytes], size: int, leaf: bytes) -> list[bytes]:
    """The roots of the full subtrees, largest first, once leaf number `size` was added."""
    grown = [*frontier, leaf]
    while size & 1:
        right = grown.pop()
        grown[-1] = node(grown[-1], right)
        size >>= 1
    return grown


def root(frontier: list[bytes]) -> bytes:
    """The root of the tree with this frontier."""
    if not frontier:
        return EMPTY_ROOT
    top = frontier[-1]
    for left in reversed(frontier[:-1]):
        top = node(left, top)
    return top


def root_of(leaves: Iterable[bytes]) -> bytes:
    """The root over these leaf hashes."""
    frontier: list[bytes] = []
    for size, leaf in enumerate(leaves):
        frontier = add(frontier, size, leaf)
    return root(frontier)
