"""How many failures a membership still stands. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Set
from dataclasses import dataclass

from ha.raft.messages import NodeId
from ha.raft.quorums import majority


@dataclass(frozen=True, slots=True)
class Standing:
    """One configuration, and which of its members answer."""

    nodes: frozenset[NodeId]
    live: frozenset[NodeId]

    @property
    def spare(self) -> int:
        """How many more members may fail; below 0: nothing can be committed."""
        return len(self.live) - majority(len(self.nodes))


def standing(nodes: Collection[NodeId], live: Set[NodeId]) -> Standing:
    """A configuration, of which those of `live` answer."""
    return Standing(frozenset(nodes), frozenset(nodes) & live)


def objection(configurations: Iterable[Collection[NodeId]], nodes: Collection[NodeId], live: Set[NodeId]) -> str | None:
    """Why these members may not follow the present configurations; None: they may.

    Until the change is committed a majority of each is needed; after it, one of the new members.
    """
    if not nodes:
        return "a log has at least one member"
    for found in [standing(each, live) for each in (*configurations, nodes)]:
        if found.spare < 0:
            silent = ", ".join(sorted(found.nodes - found.live))
            return (
                f"of the members {', '.join(sorted(found.nodes))} only {len(found.live)} answer, and "
                f"{majority(len(found.nodes))} are needed; silent: {silent}"
            )
    return None
