"""Looks around while calls wait: whether another replica became active, and which endpoints there are.

A replica that is frozen or cut off ends no connection. So once a call has waited for a while, a client with several
endpoints asks all of them which replica is active, and gives up a call to one that was replaced. The call is sent to
the new active with the same ids.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from collections.abc import Callable
from http import HTTPStatus
from typing import TypeVar

import aiohttp
import msgspec

from ledger_api.client.access import Bearer, headers_with
from ledger_api.client.endpoints import Endpoints, usable
from ledger_api.client.errors import TokenUnavailable
from ledger_api.client.exchange import NO_ANSWER, Decoder, decode, read_body
from ledger_api.wire.answers import NotaryDocument
from ledger_api.wire.endpoints import EndpointsDocument
from replica.notary.errors import ConfigError

TICK_S = 0.25
WAIT_MAX_S = 1.0  # of a call, until its client looks around; and between two looks
QUIET_MAX_S = 12.0  # of a stream of completions: the server's checkpoints come every 10 s (`api.checkpoint_s`)
ASK_MAX_S = 1.0
REFRESH_EVERY_S = 30.0
REFRESH_AGAIN_S = 5.0  # after one that failed
DOCUMENT_MAX_BYTES = 65_536
_notary = msgspec.json.Decoder(NotaryDocument)
_endpoints = msgspec.json.Decoder(EndpointsDocument)
Document = TypeVar("Document")


class Waiting(msgspec.Struct, eq=False):
    """Something that waits for an endpoint since a time of the event loop; infinity: it waits for nothing now.

    `usual_s`: so long it waits where all is well. A stream of completions is quiet while nothing is published.
    """

    endpoint: str
    since_s: float
    give_up: Callable[[], None]
    usual_s: float = WAIT_MAX_S


def newest_active(found: dict[str, NotaryDocument | None]) -> list[str]:
    """The endpoints that lead to the active replica, by what each answered, in their order.

    Several, where one is of a balancer. A deposed replica that has not noticed has an older epoch.
    """
    epochs = {endpoint: document.epoch for endpoint, document in found.items() if document and document.active}
    newest = max(epochs.values(), default=None)
    return [endpoint for endpoint, epoch in epochs.items() if epoch == newest]


class Lookout:
    """Runs beside a client that has several endpoints. Its connections are its own: the client's may all be waiting."""

    def __init__(self, endpoints: Endpoints, bearer: Bearer, tls: ssl.SSLContext | bool) -> None:
        self._endpoints = endpoints
        self._bearer = bearer
        self._tls = tls
        self._waiting: set[Waiting] = set()
        self._loop = asyncio.get_running_loop()
        self._looked_at_s = self._refresh_at_s = -math.inf

    def add(self, waiting: Waiting) -> None:
        """Watch over this one, until `remove`."""
        self._waiting.add(waiting)

    def remove(self, waiting: Waiting) -> None:
        """Its wait is over. May be repeated."""
        self._waiting.discard(waiting)

    async def run(self) -> None:
        """Look around when it is due, until cancelled."""
        timeout = aiohttp.ClientTimeout(total=ASK_MAX_S)
        connector = aiohttp.TCPConnector(ssl=self._tls)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            while True:
                now_s = self._loop.time()
                overdue = any(now_s - one.since_s >= one.usual_s for one in self._waiting)
                if overdue and now_s - self._looked_at_s >= WAIT_MAX_S:
                    self._looked_at_s = now_s
                    await self._look(session)
                if now_s >= self._refresh_at_s:
                    done = await self._refresh(session)
                    self._refresh_at_s = self._loop.time() + (REFRESH_EVERY_S if done else REFRESH_AGAIN_S)
                await asyncio.sleep(TICK_S)

    async def _look(self, session: aiohttp.ClientSession) -> None:
        """Turn to the active, and give up what waits elsewhere. This call needs no token, and gets none."""
        known, looked_at_s = self._endpoints.known, self._loop.time()
        found = await asyncio.gather(*[_fetch(session, f"{one}/v1/notary", None, _notary) for one in known])
        active = newest_active(dict(zip(known, found, strict=True)))
        if not active:
            return
        if self._endpoints.current not in active:
            self._endpoints.prefer(active[0])
        given_up_s = self._loop.time() - WAIT_MAX_S
        for waiting in list(self._waiting):
            if waiting.endpoint not in active and waiting.since_s <= given_up_s:
                waiting.give_up()
            elif waiting.endpoint in active and waiting.usual_s > WAIT_MAX_S:
                waiting.since_s = max(waiting.since_s, looked_at_s)  # its server answered us instead

    async def _refresh(self, session: aiohttp.ClientSession) -> bool:
        """Ask for the list of endpoints; False when it was not given. The one before stays in force then."""
        try:
            token = await self._bearer.token()
        except (ConfigError, TokenUnavailable):
            return False
        listed = await _fetch(session, f"{self._endpoints.current}/v1/endpoints", token, _endpoints)
        if listed is None or (listed.endpoints and not any(one.live for one in listed.endpoints)):  # it sees nobody
            return False
        self._endpoints.take_list(usable(listed, self._endpoints.configured, with_token=token is not None))
        return True


async def _fetch(
    session: aiohttp.ClientSession, url: str, token: str | None, decoder: Decoder[Document]
) -> Document | None:
    """The document at a URL; None when there is none in time, or what comes is something else."""
    try:
        async with session.get(url, headers=headers_with(token, {}), allow_redirects=False) as response:
            if response.status != HTTPStatus.OK:
                return None
            return decode(decoder, await read_body(response.content, DOCUMENT_MAX_BYTES))
    except NO_ANSWER:
        return None
