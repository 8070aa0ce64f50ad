"""Stalls that are forgiven: parts stand still for a while, and nobody loses a connection or the lead."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from time import monotonic
from urllib.parse import urlsplit

from replica.local.cluster import LocalCluster
from replica.local.haproxy import HaproxyServer
from replica.local.process import descendants
from replica.local.replica import ReplicaProcess
from tests.promises import promised

SESSIONS = 12
ANSWER_MAX_S = 10.0
PLAYED_MAX = 5
LONGER_MAX_S = 0.05  # than a stall is to last
SETTLED_S = 1.0  # until checks that were under way are over: the next stall is another one


@dataclass(frozen=True, slots=True)
class Stall:
    """Which parts stand still, and for how long; `lead_stays`: it is short enough for the lease."""

    what: str
    lasts_s: float
    lead_stays: bool = True

    def pids(self, cluster: LocalCluster, leader: ReplicaProcess) -> list[int]:
        """The processes that are stopped."""
        every = [pid for one in cluster.replicas.values() for pid in (one.pid, *descendants(one.pid))]
        balancer = cluster.balancer
        haproxy = [balancer.process.pid] if isinstance(balancer, HaproxyServer) else []
        haproxy += [child for pid in haproxy for child in descendants(pid)]
        return {
            "core": [leader.pid],
            "front ends": descendants(leader.pid),
            "replica": [leader.pid, *descendants(leader.pid)],
            "HAProxy": haproxy,
            "all replicas": every,
            "everything": every + haproxy,
        }[self.what]


@contextmanager
def standing_still(pids: Sequence[int]) -> Iterator[None]:
    """Processes are stopped while the block runs."""
    try:
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class Session:
    """One connection through the endpoint, kept open like an application's pooled one."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer = reader, writer
        self._request = f"GET /v1/notary HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()

    async def answers(self) -> bool:
        """Whether it still leads to a replica."""
        try:
            async with asyncio.timeout(ANSWER_MAX_S):
                self._writer.write(self._request)
                head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
                await self._reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
        except (OSError, TimeoutError, asyncio.IncompleteReadError):
            return False
        return head.startswith("http/1.1 200")

    def close(self) -> None:
        """Cut it."""
        self._writer.transport.abort()


@asynccontextmanager
async def sessions(endpoint: str) -> AsyncIterator[list[Session]]:
    """Some sessions that answer."""
    where, found = urlsplit(endpoint), list[Session]()
    try:
        for _ in range(SESSIONS):
            found.append(Session(*await asyncio.open_connection(where.hostname, where.port), where.netloc))
        assert all(await asyncio.gather(*(one.answers() for one in found)))
        yield found
    finally:
        for one in found:
            one.close()


async def unnoticed(cluster: LocalCluster, stall: Stall) -> None:
    """A stall that costs time and nothing else. Raises PromiseBroken: a session was cut, a replica marked down, or the
    lead changed. A stall that a busy machine made longer proves nothing and is played again."""
    for _ in range(PLAYED_MAX):
        lasted_s, broken = await _played(cluster, stall)
        if lasted_s <= stall.lasts_s + LONGER_MAX_S:
            promised(not broken, f"{stall}, {lasted_s:.3f} s: {'; '.join(broken)}")
            return
    raise AssertionError(f"no stall of {PLAYED_MAX} was as short as {stall}")


async def _played(cluster: LocalCluster, stall: Stall) -> tuple[float, list[str]]:
    """How long the parts stood still in fact, in seconds, and which promises that broke."""
    leader = await cluster.wait_for_active()
    before = await cluster.balancer.servers()
    epoch = await _epoch(cluster)
    async with sessions(cluster.endpoint) as held:
        began_s = monotonic()
        with standing_still(stall.pids(cluster, leader)):
            await asyncio.sleep(stall.lasts_s)
        lasted_s = monotonic() - began_s
        kept = sum(await asyncio.gather(*(one.answers() for one in held)))
    await asyncio.sleep(SETTLED_S)
    after = await cluster.balancer.servers()
    downs = {name: one.downs - before[name].downs for name, one in after.items()}
    broken = []
    if kept != SESSIONS:
        broken.append(f"{SESSIONS - kept} of {SESSIONS} sessions were cut")
    if any(downs.values()):
        broken.append(f"marked down: {downs}")
    if stall.lead_stays and await _epoch(cluster) != epoch:
        broken.append(f"{leader.name} lost the lead")
    return lasted_s, [*broken, leader.log_tail()] if broken else []


async def _epoch(cluster: LocalCluster) -> int:
    return max(health.epoch for health in (await cluster.healths()).values() if health is not None)
