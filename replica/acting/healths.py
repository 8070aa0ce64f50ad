"""Asks replicas for their health."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replica.health import ReplicaHealth, read_health
from replica.notary.untrusted import UNREADABLE

if TYPE_CHECKING:  # slow to import, and not needed for the help of commands
    import aiohttp

    from haproxy.render import ReplicaAddress

ANSWER_MAX_S = 1.0


async def fetch_health(session: aiohttp.ClientSession, address: ReplicaAddress) -> ReplicaHealth | None:
    """The replica's health; None when it does not answer within ANSWER_MAX_S: down, frozen or cut off."""
    import aiohttp

    url = f"http://{address.host}:{address.health_port}/health"
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_MAX_S)) as answer:
            return read_health(await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError, *UNREADABLE):
        return None


async def find_active(session: aiohttp.ClientSession, replicas: Sequence[ReplicaAddress]) -> str | None:
    """The name of the replica that says it is active; None when none does."""
    healths = await asyncio.gather(*[fetch_health(session, address) for address in replicas])
    return next((health.replica for health in healths if health is not None and health.leads), None)


async def healths_of(
    session: aiohttp.ClientSession, replicas: Sequence[ReplicaAddress]
) -> dict[str, ReplicaHealth | None]:
    """The health of every replica, by its name; None where it does not answer."""
    found = await asyncio.gather(*(fetch_health(session, address) for address in replicas))
    return dict(zip((address.name for address in replicas), found, strict=True))
