"""Looks regularly at the other replicas' health: for applications that ask which replica is active, and for marks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import aiohttp
import structlog

from ha.clock import Clock
from replica.health import ReplicaHealth, read_health
from replica.link.interface import PeerSeen
from replica.notary.marks import MarksTold
from replica.notary.untrusted import UNREADABLE

log = structlog.get_logger()

LOOK_EVERY_S = 1.0
LOOK_EXPOSED_S = 0.25  # where answers wait for the marks of peers: they may run ahead by a second
ANSWER_MAX_S = 1.0
ANSWER_MAX_BYTES = 65_536


def seen_after(before: PeerSeen, health: ReplicaHealth | None, now_us: int) -> PeerSeen:
    """What is known of a replica after a look. One that does not answer keeps the role that it was last seen in."""
    if health is None:
        return PeerSeen(before.name, before.active, before.epoch, before.seen_us, answers=False)
    return PeerSeen(before.name, health.active, health.epoch, now_us, answers=True)


class PeerWatch:
    """Passes on what it saw, after each look, from `run` until that is cancelled."""

    def __init__(
        self,
        urls: Mapping[str, str],
        tell: Callable[[Sequence[PeerSeen]], None],
        note_marks: Callable[[str, MarksTold | None], None],
        clock: Clock,
        every_s: float = LOOK_EVERY_S,
    ) -> None:
        """`urls`: where each of the other replicas shows its health. `note_marks` gets what each tells of marks, None
        where it gives no answer."""
        self._note_marks = note_marks
        self._every_s = every_s
        self._urls = urls
        self._tell = tell
        self._clock = clock
        self._seen = [PeerSeen(name, active=False, epoch=0, seen_us=None, answers=False) for name in urls]

    async def run(self) -> None:
        """Look for ever."""
        timeout = aiohttp.ClientTimeout(total=ANSWER_MAX_S)
        async with aiohttp.ClientSession(timeout=timeout, auto_decompress=False) as session:  # or the bound is none
            while True:
                found = await asyncio.gather(*[_ask(session, name, url) for name, url in self._urls.items()])
                now_us = self._clock.wall_us()
                self._seen = [seen_after(peer, health, now_us) for peer, health in zip(self._seen, found, strict=True)]
                for name, health in zip(self._urls, found, strict=True):
                    self._note_marks(name, None if health is None else health.marks)
                self._tell(self._seen)
                await self._clock.sleep_s(self._every_s)


async def _ask(session: aiohttp.ClientSession, name: str, url: str) -> ReplicaHealth | None:
    """The replica's health; None when there is no answer in time, or none of the replica of that name."""
    try:
        async with session.get(f"{url}/health", allow_redirects=False) as answer:
            if answer.content_length is None or answer.content_length > ANSWER_MAX_BYTES:
                return None
            health = read_health(await answer.read())
            return health if health.replica == name else None
    except (aiohttp.ClientError, TimeoutError, OSError, *UNREADABLE):
        return None
