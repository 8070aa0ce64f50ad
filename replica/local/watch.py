"""Reports each change of a cluster's replicas at once: which turns active, which follows, which is down."""

from __future__ import annotations

import asyncio

from replica.health import ReplicaHealth
from replica.local.cluster import LocalCluster
from replica.local.kept import Say

WATCH_INTERVAL_S = 0.2


async def watch_roles(cluster: LocalCluster, say: Say) -> None:
    """Report the present state of each replica, then each change, for ever."""
    last: dict[str, str] = {}
    while True:
        for name, health in (await cluster.healths()).items():
            now = describe(health)
            if last.get(name) != now:
                say(name, now)
                last[name] = now
        await asyncio.sleep(WATCH_INTERVAL_S)


def _describe_worker(health: ReplicaHealth) -> str:
    """The same where all serve: whether it serves, and whether it holds the lock."""
    lock = f", holds the lock, epoch {health.epoch}" if health.leads else "" if health.may_lead else ", may not lead"
    if health.active:
        return f"SERVES{lock}"
    why = f": {health.not_serving_detail}" if health.not_serving_detail else ""
    return f"does not serve{lock}{why}"


def describe(health: ReplicaHealth | None) -> str:
    """A replica's present state, in a few words."""
    if health is None:
        return "does not answer"
    if health.serving == "all":
        return _describe_worker(health)
    if health.leads:
        return f"ACTIVE, epoch {health.epoch}"
    if health.role == "passive":
        return "passive, ready" if health.ready else "passive, not ready yet"
    return health.role.replace("_", " ")
