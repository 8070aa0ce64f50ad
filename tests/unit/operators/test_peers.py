"""Looking at the other replicas for applications that ask which one is active."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Mapping, Sequence

import pytest
from aiohttp import web

from ha.clock import SystemClock
from replica.health import ReplicaHealth
from replica.link.interface import PeerSeen
from replica.notary.marks import MarksTold
from replica.operators.peers import ANSWER_MAX_BYTES, PeerWatch, seen_after
from tests.waiting import eventually

NEVER = PeerSeen("r2", active=False, epoch=0, seen_us=None, answers=False)


def health(*, active: bool, epoch: int) -> dict[str, object]:
    return {
        "replica": "r2",
        "version": "1",
        "role": "active" if active else "passive",
        "active": active,
        "ready": True,
        "epoch": epoch,
        "applied_offset": 1,
        "lag_records": 0,
        "reaches_log": True,
        "front_ends": 1,
        "lock_owner": None,
        "hold_down_s": 0.0,
        "ledger_end": None,
        "activation_steps_s": {},
    }


def parsed(*, active: bool, epoch: int) -> ReplicaHealth:
    return ReplicaHealth(**health(active=active, epoch=epoch))  # type: ignore[arg-type]


def test_a_silent_replica_keeps_the_role_that_it_was_seen_in() -> None:
    """Goal: "last seen" is what was seen. Method: an answer, then silence, then another answer."""
    assert seen_after(NEVER, None, 5) == NEVER
    seen = seen_after(NEVER, parsed(active=True, epoch=7), 5)
    assert seen == PeerSeen("r2", active=True, epoch=7, seen_us=5, answers=True)
    silent = seen_after(seen, None, 6)
    assert silent == PeerSeen("r2", active=True, epoch=7, seen_us=5, answers=False)
    assert seen_after(silent, parsed(active=False, epoch=8), 9) == PeerSeen("r2", False, 8, 9, answers=True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"[" * 5_000,
        b" " * (ANSWER_MAX_BYTES + 1),
        json.dumps(health(active=True, epoch=-1)).encode(),  # front ends would refuse the core that passes it on
        json.dumps(health(active=True, epoch=2**64)).encode(),
        json.dumps(health(active=True, epoch=7) | {"replica": "r9"}).encode(),
        gzip.compress(json.dumps(health(active=True, epoch=7)).encode() + b" " * 2**26),
    ],
    ids=["none", "list", "half", "deep", "long", "negative", "endless", "another", "bomb"],
)
async def test_what_is_no_health_counts_as_silence(body: bytes) -> None:
    """Goal: whoever has a replica's port cannot end the look. Method: bad answers, then a good one, from one server."""
    answers: list[bytes] = [body]
    told: list[Sequence[PeerSeen]] = []

    class Clock(SystemClock):
        async def sleep_s(self, duration_s: float) -> None:
            await asyncio.sleep(0)

    def note_marks(name: str, _: MarksTold | None) -> None:
        marks.add(name)

    marks: set[str] = set()

    async def answer(_: web.Request) -> web.Response:
        packed = {"Content-Encoding": "gzip"} if answers[-1].startswith(b"\x1f\x8b") else {}
        return web.Response(body=answers[-1], headers=packed)

    app = web.Application()
    app.router.add_get("/health", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    urls: Mapping[str, str] = {"r2": f"http://127.0.0.1:{runner.addresses[0][1]}", "r3": "http://127.0.0.1:9"}
    running = asyncio.create_task(PeerWatch(urls, told.append, note_marks, Clock()).run())

    async def looked() -> bool:
        return bool(told)

    async def seen() -> bool:
        return told[-1][0].active

    try:
        await eventually(looked)
        assert [peer.answers for peer in told[0]] == [False, False]
        answers.append(json.dumps(health(active=True, epoch=3)).encode())
        await eventually(seen)
        assert not told[-1][1].answers
        assert marks == {"r2", "r3"}
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await runner.cleanup()
