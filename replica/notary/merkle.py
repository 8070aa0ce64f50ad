"""Merkle trees over answered batches: one signature covers a batch, and each answer carries its own proof.

The tree is that of RFC 6962 (a tree of n leaves splits at the largest power of two below n); leaves and inner nodes are
hashed in separate domains. A batch of one is a tree of one leaf.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

_LEAF, NODE = b"\x00", b"\x01"


def leaf_hash(tx_id: bytes, content_digest: bytes, place: bytes = b"") -> bytes:
    """The leaf of one notarised transaction: certifies the id and exactly what it consumed.

    `place`: the bytes that say where and when; empty where that is not known.
    """
    return sha256(_LEAF + tx_id + content_digest + place).digest()


def tree_levels(leaves: Sequence[bytes]) -> list[Sequence[bytes]]:
    """All levels of the tree, leaves first, root last; an odd node at the end of a level moves up as it is."""
    if not leaves:
        raise ValueError("a tree has at least one leaf")
    levels: list[Sequence[bytes]] = [leaves]
    while len(level := levels[-1]) > 1:
        parents = [sha256(NODE + level[at] + level[at + 1]).digest() for at in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            parents.append(level[-1])
        levels.append(parents)
    return levels


def inclusion_paths(levels: Sequence[Sequence[bytes]]) -> list[tuple[bytes, ...]]:
    """For each leaf the sibling hashes up to the root, at most one a level; a node's are its parent's and one more."""
    paths: list[tuple[bytes, ...]] = [()]
    for level in reversed(levels[:-1]):
        whole = len(level) & ~1
        below = [
            path
            for at in range(0, whole, 2)
            for path in ((level[at + 1], *paths[at >> 1]), (level[at], *paths[at >> 1]))
        ]
        paths = below + paths[whole >> 1 :]  # an odd node at the end has moved up as it is
    return paths


def root_from_path(leaf: bytes, leaf_index: int, tree_size: int, path: Sequence[bytes]) -> bytes | None:
    """The root that a path leads to; None when the path does not fit a leaf at that place of a tree of that size."""
    if not 0 <= leaf_index < tree_size:
        return None
    node, index, last, used = leaf, leaf_index, tree_size - 1, 0
    while last > 0:
        if index % 2 or index < last:  # the node has a sibling on this level
            if used == len(path):
                return None
            sibling = path[used]
            used += 1
            node = sha256(NODE + (sibling + node if index % 2 else node + sibling)).digest()
        index >>= 1
        last >>= 1
    return node if used == len(path) else None
