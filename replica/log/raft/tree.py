"""The Merkle tree over a whole log: it grows by one entry at a time, and can be cut.

The tree is that of RFC 6962, as in `replica/notary/merkle.py`. Only the roots of its whole subtrees are kept, at most
one for each bit of the size; and the leaves since the newest signature that is committed: they may be cut off.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from replica.notary.merkle import NODE

Peaks = tuple[bytes, ...]


class LogTree:
    """The tree over entries 1 to `size`."""

    __slots__ = ("_first_leaf", "_kept", "_leaves", "_peaks", "size")

    def __init__(self) -> None:
        self.size = 0
        self._peaks: list[bytes] = []  # roots of whole subtrees, the largest first
        self._leaves: list[bytes] = []  # since the oldest point that is kept
        self._first_leaf = 1  # the entry of the first of them
        self._kept: list[tuple[int, Peaks]] = [(0, ())]  # ascending sizes, with their peaks

    def grow(self, leaves: Iterable[bytes]) -> None:
        """Add leaves at the end: on each level, what is there joins the first of what comes, pair by pair."""
        nodes, below = list(leaves), self.size
        self._leaves += nodes
        self.size += len(nodes)
        whole: list[bytes] = []  # new roots of whole subtrees, the smallest first
        while nodes:
            if below & 1:
                nodes.insert(0, self._peaks.pop())
            if len(nodes) & 1:
                whole.append(nodes.pop())
            pairs = zip(nodes[::2], nodes[1::2], strict=True)
            nodes = [sha256(NODE + left + right).digest() for left, right in pairs]
            below >>= 1
        self._peaks += reversed(whole)

    def root(self) -> bytes:
        """The root; an empty tree's is the hash of nothing."""
        if not self._peaks:
            return sha256(b"").digest()
        node = self._peaks[-1]
        for peak in reversed(self._peaks[:-1]):
            node = sha256(NODE + peak + node).digest()
        return node

    def keep(self) -> None:
        """Keep the present tree: returning to it, or forgetting what is before it, then costs nothing."""
        self._kept.append((self.size, tuple(self._peaks)))

    def cut(self, size: int) -> None:
        """Go back to a smaller tree, not below the argument of `forget`."""
        if size >= self.size:
            return
        while self._kept[-1][0] > size:
            self._kept.pop()
        kept, peaks = self._kept[-1]
        again = self._leaves[kept + 1 - self._first_leaf : size + 1 - self._first_leaf]
        del self._leaves[kept + 1 - self._first_leaf :]
        self.size, self._peaks = kept, list(peaks)
        self.grow(again)

    def forget(self, size: int) -> None:
        """Nothing up to `size` will ever be cut: drop its leaves, up to the newest point kept there."""
        place = 0
        while place + 1 < len(self._kept) and self._kept[place + 1][0] <= size:
            place += 1
        del self._kept[:place]
        first_leaf = self._kept[0][0] + 1
        del self._leaves[: first_leaf - self._first_leaf]
        self._first_leaf = first_leaf
