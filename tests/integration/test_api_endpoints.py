"""GET /v1/endpoints: where applications reach the replicas, and which one is active."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from ledger_api.server.endpoint_routes import listed
from ledger_api.server.settings import ListedReplica, Listing
from replica.link.interface import PeerSeen, Standing
from tests.worlds.api_world import ACTIVE, PASSIVE, ApiWorld, StubParticipant

A, B, C = "https://a:8080", "https://b:8080", "https://c:8080"
LISTING = Listing(replicas=tuple(ListedReplica(name=f"r{n}", url=url) for n, url in enumerate((A, B, C), 1)))
SEEN_US = 1_700_000_000_000_000


def peer(name: str, *, active: bool = False, epoch: int = 7, answers: bool = True) -> PeerSeen:
    return PeerSeen(name, active, epoch, SEEN_US, answers)


async def asked(world: ApiWorld, path: str = "/v1/endpoints") -> tuple[int, dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.get(world.endpoint + path) as response:
        return response.status, json.loads(await response.read())


async def test_a_passive_replica_lists_what_it_saw(tmp_path: Path) -> None:
    """Goal: no leadership is needed to answer. Method: a passive with one active peer, and one that fell silent."""
    participant = StubParticipant()
    participant.standing = PASSIVE
    participant.peers = [peer("r2", active=True), peer("r3", active=True, epoch=6, answers=False)]
    async with ApiWorld(participant, listing=LISTING).serve() as world:
        status, found = await asked(world)
        bad, _ = await asked(world, "/v1/endpoints?all=true")
    seen_at = "2023-11-14T22:13:20.000000Z"
    assert (status, bad) == (200, 400)
    assert found == {
        "replica": "r1",
        "endpoints": [
            {"url": A, "replica": "r1", "role": "passive", "live": True, "seen_at": None},
            {"url": B, "replica": "r2", "role": "active", "live": True, "seen_at": seen_at},
            {"url": C, "replica": "r3", "role": "active", "live": False, "seen_at": seen_at},
        ],
        "active": B,
    }


async def test_without_addresses_nothing_is_listed(tmp_path: Path) -> None:
    """Goal: no address is invented. Method: a replica whose configuration names none."""
    async with ApiWorld(StubParticipant()).serve() as world:
        assert await asked(world) == (200, {"replica": "r1", "endpoints": [], "active": None})


def test_the_newer_epoch_is_the_active() -> None:
    """Goal: one that was deposed and has not noticed is not called active. Method: two that say so, in both orders."""
    for ours, theirs, active in ((7, 8, B), (8, 7, A)):
        standing = msgspec.structs.replace(ACTIVE, epoch=ours)
        assert listed(LISTING, "r1", standing, [peer("r2", active=True, epoch=theirs)]).active == active


def test_where_several_serve_each_is_called_active() -> None:
    """Goal: a client may go to any of them, and stays with the one that it asked. Method: two that
    serve in one epoch, asked of one of them, and of a third that does not serve."""
    peers = [peer("r2", active=True, epoch=ACTIVE.epoch), peer("r3")]
    found = listed(LISTING, "r1", ACTIVE, peers)
    assert [one.role for one in found.endpoints] == ["active", "active", "passive"]
    assert found.active == A
    assert listed(LISTING, "r1", PASSIVE, peers).active == B


def test_a_silent_active_is_not_the_active() -> None:
    """Goal: "active now" needs an answer now. Method: the last seen active is silent; nobody else leads."""
    found = listed(LISTING, "r1", PASSIVE, [peer("r2", active=True, answers=False), peer("r3")])
    assert found.active is None
    assert [(one.role, one.live) for one in found.endpoints] == [
        ("passive", True),
        ("active", False),
        ("passive", True),
    ]
    unseen = PeerSeen("r2", active=False, epoch=0, seen_us=None, answers=False)
    assert [one.role for one in listed(LISTING, "r1", PASSIVE, [unseen]).endpoints] == ["passive", "unknown", "unknown"]


async def test_a_replica_whose_core_is_silent_calls_nobody_live(tmp_path: Path) -> None:
    """Goal: nobody is sent to a replica that cannot serve. Method: front ends whose core is frozen."""
    participant = StubParticipant()
    participant.standing, participant.is_silent = PASSIVE, True
    participant.peers = [peer("r2", active=True, answers=False), peer("r3", answers=False)]
    async with ApiWorld(participant, listing=LISTING).serve() as world:
        _, found = await asked(world)
    assert [one["live"] for one in found["endpoints"]] == [False] * 3
    assert found["active"] is None


def test_a_balanced_endpoint_is_listed_alone() -> None:
    """Goal: where there is a balancer, nobody goes past it. Method: its address, with peers that were seen."""
    listing = Listing(replicas=LISTING.replicas, balanced="https://notary:8080")
    found = listed(listing, "r1", Standing(True, 7, 0.25), [peer("r2")])
    assert [(one.url, one.role) for one in found.endpoints] == [("https://notary:8080", "balanced")]
    assert found.active is None
