"""Which log a node has. Two logs of one name may exist: a node with an empty disk can begin another one. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ha.raft.quorums import majority


def is_other_log(own: str, named: str) -> bool:
    """Whether two nodes have different logs; "": a node that has nothing of a log yet, and may get any."""
    return bool(own and named) and own != named


def believed_log(named: Iterable[str], nodes: int, *, known: str = "") -> str | None:
    """The log that clients of so many configured nodes believe in, by the ids that some of these named.

    It takes a majority. Nodes without a log, "", count for the only log that is named. Without a majority for any log
    the answer is the log that was `known` before; None: none was.
    """
    counts = Counter(named)
    empty = counts.pop("", 0)
    for log_id, count in counts.items():
        if count + (empty if len(counts) == 1 else 0) >= majority(nodes):
            return log_id
    return known or None
