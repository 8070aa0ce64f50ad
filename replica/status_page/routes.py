"""The status page of one replica: three files and the data that they draw. Everything on it is read only.

The page loads nothing from elsewhere, and its headers forbid that. Its script requests data once a second. The replica
queries its peers and the database only while a browser shows the page, one query at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

import aiohttp
import msgspec
from aiohttp import web

from ha.clock import Clock
from replica.notary.untrusted import UNREADABLE
from replica.status_page.samples import SAMPLE_S, Reading, Sample, Samples, quantile, risen
from replica.telemetry.counts import LATENCY_BOUNDS_S

PEER_ANSWER_MAX_S = 0.5
PEERS_MAX_AGE_S = 0.5  # however many browsers look, and however often
HISTORY_MAX_AGE_S = 5.0
HISTORY_ANSWER_MAX_S = 2.0
_FILES = {
    "/": ("page.html", "text/html"),
    "/page.js": ("page.js", "text/javascript"),
    "/page.css": ("page.css", "text/css"),
}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_encoder = msgspec.json.Encoder()


class Peer(msgspec.Struct, frozen=True):
    """A replica of the participant, as this one sees it. All but the name is None when it does not answer."""

    name: str
    url: str
    health: Mapping[str, object] | None = None
    p50_s: float | None = None  # of the submissions that it answered between the last two looks; None: of none
    p99_s: float | None = None


class Epoch(msgspec.Struct, frozen=True):
    """One line of the epoch history; texts are for people, times RFC 3339."""

    epoch: int
    replica: str
    since: str | None  # None: before the first request of a log that is made without a database
    until: str | None
    why: str | None


class StatusPageData(msgspec.Struct, frozen=True):
    """The answer to one request of the page's script."""

    cluster: str
    endpoint: str
    replica: str
    version: str
    replicas: Sequence[Peer]
    epochs: Sequence[Epoch]
    epochs_problem: str | None
    samples: Sequence[Sample]


@dataclass(slots=True, kw_only=True)
class StatusPage:
    """One replica's page. `read` and `detail` are cheap; `history` may take its time and may raise."""

    name: str
    version: str
    cluster: str = "notary"
    endpoint: str = ""
    peers: Mapping[str, str]  # health URL of each replica of the participant but this one
    clock: Clock
    read: Callable[[], Reading]
    detail: Callable[[], Mapping[str, object]]
    history: Callable[[], Awaitable[Sequence[Epoch]]]
    _samples: Samples = field(default_factory=Samples)
    _peers: Sequence[Peer] = ()
    _peers_at_s: float = float("-inf")
    _epochs: Sequence[Epoch] = ()
    _epochs_problem: str | None = None
    _epochs_at_s: float = float("-inf")
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def run(self) -> None:
        """Take a sample every second, until cancelled."""
        while True:
            self._samples.note(self.read())
            await self.clock.sleep_s(SAMPLE_S)

    def routes(self) -> list[web.RouteDef]:
        """What the admin listener serves of it."""
        return [web.get(path, _file(*of)) for path, of in _FILES.items()] + [web.get("/page/data", self._data)]

    async def _data(self, request: web.Request) -> web.Response:
        after = request.query.get("after", "")
        async with self._asking:  # a caller that waits here finds fresh answers
            await asyncio.gather(self._refresh_peers(), self._refresh_history())
        newest = self._samples.newest()
        latency = (None, None) if newest is None else (newest.p50_s, newest.p99_s)
        data = StatusPageData(
            self.cluster,
            self.endpoint,
            self.name,
            self.version,
            sorted([Peer(self.name, "", self.detail(), *latency), *self._peers], key=lambda peer: peer.name),
            self._epochs,
            self._epochs_problem,
            self._samples.after(int(after) if after.isdecimal() and len(after) < 16 else 0),
        )
        return web.Response(body=_encoder.encode(data), content_type="application/json", headers=HEADERS)

    async def _refresh_peers(self) -> None:
        if self.clock.boottime_s() - self._peers_at_s < PEERS_MAX_AGE_S:
            return
        timeout = aiohttp.ClientTimeout(total=PEER_ANSWER_MAX_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            found = await asyncio.gather(*(_ask(session, name, url) for name, url in self.peers.items()))
        before = {peer.name: peer.health for peer in self._peers}
        self._peers = [with_latency(peer, before.get(peer.name)) for peer in found]
        self._peers_at_s = self.clock.boottime_s()

    async def _refresh_history(self) -> None:
        now_s = self.clock.boottime_s()
        if now_s - self._epochs_at_s < HISTORY_MAX_AGE_S:
            return
        self._epochs_at_s = now_s
        try:
            async with asyncio.timeout(HISTORY_ANSWER_MAX_S):
                self._epochs, self._epochs_problem = await self.history(), None
        except Exception as error:  # the page is needed most when the database fails: show the rest, and say so
            self._epochs_problem = str(error) or type(error).__name__


def with_latency(peer: Peer, before: Mapping[str, object] | None) -> Peer:
    """The peer with the latency of what it answered since its health `before`; an older release does not show it."""
    counts = [_counts(health) for health in (before, peer.health)]
    if None in counts or peer.health is None:
        return peer
    answered = risen(*(found for found in counts if found is not None))
    return Peer(peer.name, peer.url, peer.health, quantile(answered, 0.5), quantile(answered, 0.99))


def _counts(health: Mapping[str, object] | None) -> list[int] | None:
    try:
        found = msgspec.convert((health or {}).get("answers"), list[int])
    except msgspec.ValidationError:
        return None
    return found if len(found) == len(LATENCY_BOUNDS_S) + 1 else None


async def _ask(session: aiohttp.ClientSession, name: str, url: str) -> Peer:
    try:
        async with session.get(f"{url}/health") as answer:
            found = msgspec.json.decode(await answer.read(), type=dict[str, object])
            return Peer(name, url, found)
    except (aiohttp.ClientError, TimeoutError, OSError, *UNREADABLE):
        return Peer(name, url)


def _file(name: str, content_type: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    text = files("replica.status_page").joinpath(name).read_text("utf-8")

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type=content_type, headers=HEADERS)

    return answer
