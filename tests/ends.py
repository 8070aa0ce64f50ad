"""Ends of a replica's processes that nobody asked for: no scenario passes with one, unless it declares it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from replica.local.cluster import LocalCluster
from replica.local.replica import ReplicaProcess
from tests.promises import promised

FRONT_END_ENDED = b'"event": "front_end_ended"'  # a core's text for one that it had not asked to end


@contextmanager
def none_ends_unasked(replicas: Mapping[str, ReplicaProcess]) -> Iterator[None]:
    """Core and front ends of these replicas, and of those that are added, end only when a test ends them.

    Raises PromiseBroken with the last words of what ended while the block ran.
    """
    sizes = {one.log_path: _size(one.log_path) for one in replicas.values()}
    known = {one.name: len(one.ended_unasked) for one in replicas.values()}
    try:
        yield
    finally:  # whatever else failed: it may well be why
        ended = [text for one in replicas.values() for text in one.ended_unasked[known.get(one.name, 0) :]]
        for one in replicas.values():
            ended += [f"{one.name}: {line}" for line in _front_ends_ended(one.log_path, sizes.get(one.log_path, 0))]
        promised(not ended, "\n".join(["ended, and nobody had asked for it:", *ended]))


@asynccontextmanager
async def guarded(started: LocalCluster) -> AsyncIterator[LocalCluster]:
    """A cluster that is started and stopped, and whose replicas end when a test ends them. Raises PromiseBroken, and
    AssertionError where one ended already while the cluster was started: nobody's first activation fails."""
    async with started as cluster:
        parts = [*cluster.replicas.values(), *cluster.log_nodes.values()]
        ended = [text for one in parts for text in one.ended_unasked]
        assert not ended, "\n".join(["ended while the cluster was started:", *ended])
        with none_ends_unasked(cluster.replicas):
            yield cluster


@contextmanager
def ends_by_design(*replicas: ReplicaProcess) -> Iterator[None]:
    """What was done to these replicas is to end their cores: such ends are not counted while the block runs."""
    known = [len(one.ended_unasked) for one in replicas]
    try:
        yield
    finally:
        for one, count in zip(replicas, known, strict=True):
            del one.ended_unasked[count:]


def _front_ends_ended(log_path: Path, from_byte: int) -> list[str]:
    if not log_path.exists():
        return []
    with log_path.open("rb") as log:
        log.seek(from_byte)
        return [line.decode(errors="replace").strip() for line in log if FRONT_END_ENDED in line]


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
