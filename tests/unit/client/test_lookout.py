"""When a client asks all endpoints which replica is active, and what it gives up then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ledger_api.client import lookout
from ledger_api.client.access import Bearer
from ledger_api.client.endpoints import Endpoints
from ledger_api.client.lookout import Lookout, Waiting
from ledger_api.wire.answers import NotaryDocument
from ledger_api.wire.endpoints import EndpointDocument, EndpointsDocument
from tests.waiting import eventually

A, B, C = (f"http://{name}.example:8080" for name in "abc")
CALL_S, QUIET_S = 0.1, 0.6


class Replicas:
    """What the endpoints answer."""

    def __init__(self) -> None:
        self.active: str | None = A
        self.frozen: set[str] = set()
        self.listed: EndpointsDocument | None = None
        self.rounds = 0

    async def fetch(self, session: object, url: str, token: object, decoder: object) -> Any:
        endpoint, _, path = url.partition("/v1/")
        if path == "endpoints":
            return self.listed
        self.rounds += endpoint == A
        if endpoint in self.frozen:
            return None
        epoch = 7 if self.active == A else 8
        return NotaryDocument(
            notary_key="", version="", replica="", active=endpoint == self.active, epoch=epoch, batch_max=1,
            body_max_bytes=1,
        )  # fmt: skip


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Replicas:
    found = Replicas()
    for name, value in (("TICK_S", 0.01), ("WAIT_MAX_S", CALL_S), ("REFRESH_EVERY_S", 0.01), ("REFRESH_AGAIN_S", 0.01)):
        monkeypatch.setattr(lookout, name, value)
    monkeypatch.setattr(lookout, "_fetch", found.fetch)
    return found


@asynccontextmanager
async def looking(endpoints: Endpoints) -> AsyncIterator[Lookout]:
    found = Lookout(endpoints, Bearer(None), tls=True)
    running = asyncio.create_task(found.run())
    try:
        yield found
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


def waits(endpoint: str, give_up: Callable[[], None], usual_s: float = CALL_S) -> Waiting:
    return Waiting(endpoint, asyncio.get_running_loop().time(), give_up, usual_s)


async def test_a_quiet_stream_is_no_sign_of_a_frozen_replica(replicas: Replicas) -> None:
    """Goal: an idle notary is not asked by all its readers each second. Method: a stream that is quiet for three times
    as long as a call may wait; then for longer than is usual, at a replica that is well."""
    async with looking(Endpoints([A, B])) as found:
        given_up = asyncio.Event()
        found.add(waits(A, given_up.set, QUIET_S))
        await asyncio.sleep(3 * CALL_S)
        assert replicas.rounds == 0
        await asyncio.sleep(QUIET_S + 3 * CALL_S)
        assert replicas.rounds == 1  # the answer was as good as a checkpoint
        assert not given_up.is_set()


async def test_a_stream_of_a_frozen_replica_is_left(replicas: Replicas) -> None:
    """Goal: readers go on at the new active. Method: a stream at a replica that froze; with a call there as well, at
    once."""
    replicas.active, replicas.frozen = B, {A}
    async with looking(Endpoints([A, B])) as found:
        alone, beside = asyncio.Event(), asyncio.Event()
        found.add(waits(A, alone.set, QUIET_S))
        await asyncio.wait_for(alone.wait(), 10 * QUIET_S)
        stream = waits(A, beside.set, 1_000.0)
        found.add(stream)
        found.add(waits(A, lambda: None))
        await asyncio.wait_for(beside.wait(), 10 * QUIET_S)


async def test_a_list_of_a_replica_that_sees_nobody_is_not_taken(replicas: Replicas) -> None:
    """Goal: a frozen core's front end does not take the learned endpoints away. Method: a list with one to learn; the
    same where nobody is live; an empty one."""

    def listed(*, live: bool) -> EndpointsDocument:
        entries = [EndpointDocument(url=url, replica=url, role="passive", live=live) for url in (A, C)]
        return EndpointsDocument(replica="r1", endpoints=entries)

    endpoints = Endpoints([A, B])

    async def knows_c() -> bool:
        return C in endpoints.known

    async def forgot_c() -> bool:
        return C not in endpoints.known

    replicas.listed = listed(live=True)
    async with looking(endpoints):
        await eventually(knows_c)
        replicas.listed = listed(live=False)
        await asyncio.sleep(0.2)
        assert await knows_c()
        replicas.listed = EndpointsDocument(replica="r1", endpoints=[])
        await eventually(forgot_c)
