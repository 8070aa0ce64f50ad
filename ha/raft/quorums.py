"""Majorities. Each active configuration counts separately: a majority of the union may be a majority of none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from ha.raft.membership import Configuration
from ha.raft.messages import NodeId


def majority(nodes: int) -> int:
    """The smallest number of nodes such that any two sets of that size share a node."""
    return nodes // 2 + 1


def won(configurations: Iterable[Configuration], granted: Set[NodeId]) -> bool:
    """Whether these votes are a majority in every configuration."""
    return all(len(c.nodes & granted) >= majority(len(c.nodes)) for c in configurations)


def agreed_idx(configurations: Iterable[Configuration], match_of: Callable[[NodeId], int]) -> int:
    """The highest index that a majority of every configuration has."""
    return min(_agreed_in(configuration, match_of) for configuration in configurations)


def _agreed_in(configuration: Configuration, match_of: Callable[[NodeId], int]) -> int:
    matches = sorted(match_of(node) for node in configuration.nodes)
    return matches[(len(matches) - 1) // 2]


def heard(configurations: Iterable[Configuration], is_live: Callable[[NodeId], bool]) -> bool:
    """Whether a majority of every configuration was heard lately."""
    return all(sum(map(is_live, c.nodes)) >= majority(len(c.nodes)) for c in configurations)
