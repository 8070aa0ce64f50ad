"""The call that lists where applications reach the replicas, and which of them is active. Every replica answers it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ledger_api.server.query_string import QueryString
from ledger_api.server.replies import Reply
from ledger_api.server.routes import About, Call, Right, Route
from ledger_api.server.settings import Listing
from ledger_api.wire.endpoints import EndpointDocument, EndpointsDocument
from replica.link.interface import CoreLink, PeerSeen, Standing
from replica.notary.codes import Code
from replica.notary.texts import format_time

ENDPOINTS = "/v1/endpoints"
_encoder = msgspec.json.Encoder()
_ABOUT = About(
    summary="Where applications reach this notary, and which replica is active now; passives answer as well",
    answers={200: EndpointsDocument},
    right=Right.READ,
    codes=(Code.QUERY_INVALID,),
)


def listed(
    listing: Listing, replica: str, standing: Standing, peers: Sequence[PeerSeen], *, live: bool = True
) -> EndpointsDocument:
    """The list, as the replica of that name knows it; `live`: whether its own core is heard.

    A replica that was active when it fell silent is not active now, and where two say that they are, the newer epoch
    holds: the other one has not noticed yet.
    """
    if listing.balanced is not None:
        only = EndpointDocument(url=listing.balanced, role="balanced", live=True)
        return EndpointsDocument(replica=replica, endpoints=[only])
    seen = {peer.name: peer for peer in peers}
    leaders = {peer.epoch: peer.name for peer in peers if peer.active and peer.answers}
    if standing.active:
        leaders[standing.epoch] = replica
    leader = leaders[max(leaders)] if leaders else None
    entries = [
        _own(one.url, replica, standing, live) if one.name == replica else _of(one.url, one.name, seen.get(one.name))
        for one in listing.replicas
    ]
    active = next((one.url for one in listing.replicas if one.name == leader), None)
    return EndpointsDocument(replica=replica, endpoints=entries, active=active)


def _own(url: str, replica: str, standing: Standing, live: bool) -> EndpointDocument:
    return EndpointDocument(url=url, replica=replica, role="active" if standing.active else "passive", live=live)


def _of(url: str, name: str, peer: PeerSeen | None) -> EndpointDocument:
    if peer is None or peer.seen_us is None:
        return EndpointDocument(url=url, replica=name, role="unknown", live=False)
    return EndpointDocument(
        url=url,
        replica=name,
        role="active" if peer.active else "passive",
        live=peer.answers,
        seen_at=format_time(peer.seen_us),
    )


class EndpointRoutes:
    """Answers this call, in either role."""

    def __init__(self, core: CoreLink, replica: str, listing: Listing) -> None:
        self._core = core
        self._replica = replica
        self._listing = listing

    def routes(self) -> list[Route]:
        """The call."""
        return [Route("GET", ENDPOINTS, self._list, _ABOUT)]

    async def _list(self, call: Call) -> Reply:
        QueryString(call.query, ())
        core = self._core
        document = listed(self._listing, self._replica, core.standing, core.peers, live=not core.is_silent)
        return Reply(200, _encoder.encode(document), call.request_id)
