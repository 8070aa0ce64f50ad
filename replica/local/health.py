"""What a replica says of itself on its health port."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import aiohttp
import msgspec

from ha.lock.interface import ServerLease
from haproxy.render import ReplicaAddress
from replica.notary.formats import Known
from replica.notary.untrusted import UNREADABLE

ANSWER_MAX_S = 1.0


class Scrubbed(msgspec.Struct, frozen=True):
    """How far a replica's present pass is that compares its index with the log: records, and seconds."""

    records: int
    of_records: int
    age_s: float
    within_s: float

    def __str__(self) -> str:
        share = f"{100 * self.records // self.of_records if self.of_records else 100} %"
        return f"{share}, late" if self.age_s > self.within_s else share


class ReplicaHealth(msgspec.Struct, frozen=True):
    """The detail page of a replica, as far as people and tools need it. Offsets are -1 when nothing is applied."""

    replica: str
    version: str
    role: str
    active: bool
    ready: bool
    epoch: int
    applied_offset: int
    lag_records: int
    reaches_log: bool
    front_ends: int
    lock_owner: str | None
    hold_down_s: float
    ledger_end: int | None
    activation_steps_s: dict[str, float]
    lock_answer_age_s: float | None = None  # since the newest answer on its lock session was asked for: the heartbeat
    failover_paused: bool = False
    index_digests: dict[str, str] = {}  # of all entries, by the number of records that made them
    scrub: Scrubbed | None = None  # None: a release that does not tell
    formats_known: Known = Known()  # what its release can read
    granted_by: str = ""  # the database that granted the epoch in force, as its barrier names it
    lock_lease: ServerLease | None = None  # what ends its lock session when it is silent; None while it has none


_decoder = msgspec.json.Decoder(ReplicaHealth)


async def fetch_health(session: aiohttp.ClientSession, address: ReplicaAddress) -> ReplicaHealth | None:
    """The replica's health; None when it does not answer within ANSWER_MAX_S: down, frozen or cut off."""
    url = f"http://{address.host}:{address.health_port}/health"
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_MAX_S)) as answer:
            return _decoder.decode(await answer.read())
    except (aiohttp.ClientError, TimeoutError, OSError, *UNREADABLE):
        return None


async def find_active(session: aiohttp.ClientSession, replicas: Sequence[ReplicaAddress]) -> str | None:
    """The name of the replica that says it is active; None when none does."""
    healths = await asyncio.gather(*[fetch_health(session, address) for address in replicas])
    return next((health.replica for health in healths if health is not None and health.active), None)
