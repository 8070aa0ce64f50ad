"""A replica's side of what lives.py decides: lifelines of an activation of its own, and watching another's.

A lifeline to every log node, since one may end in the same moment as the replica. Nothing waits for them: without a
lifeline, or without a node that saw its end, the holder's silence decides.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from typing import Any

from replica.log.raft.client import CallFailed, LogClient
from replica.notary.errors import LogRefused, LogUnavailable
from replica.notary.tasks import cancelled

_PAUSE_S = 0.05, 5.0  # between two tries at one node: the first, and the longest
_TIES_MAX = 50  # connections of one activation to one node; each keeps a descriptor open
_WATCH_MS = 10_000  # of one question
Connect = Callable[[str], Coroutine[Any, Any, LogClient]]


class Lifelines:
    """The lifelines of one activation. Close them only once this replica leads no more with it."""

    def __init__(self, nodes: Iterable[str], connect: Connect, activation_id: bytes) -> None:
        self._connect = connect
        self._activation_id = activation_id
        self._kept: list[int] = []  # descriptors: what the event loop does with a connection ends none of them
        self._tasks = [asyncio.create_task(self._keep(node), name=f"lifeline {node}") for node in nodes]

    async def close(self) -> None:
        """End them: from now on every log node says so. May be repeated."""
        await cancelled(*self._tasks)
        kept, self._kept = self._kept, []
        for descriptor in kept:
            os.close(descriptor)

    async def _keep(self, node: str) -> None:
        """Tie a connection to the node, and another one whenever it is gone."""
        pause_s = _PAUSE_S[0]
        for _ in range(_TIES_MAX):
            client = await _connected(node, self._connect)
            try:
                self._kept.append(client.keep_open())
                await client.tie(self._activation_id)
                pause_s = _PAUSE_S[0]
                await client.ended()
            except CallFailed:  # on another machine a connection's end would prove nothing
                return
            except (LogUnavailable, OSError):  # it has ended already, or there is no descriptor left
                pass
            finally:
                await client.close()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])


async def wait_for_end(nodes: Iterable[str], connect: Connect, activation_id: bytes) -> None:
    """Return once a log node has seen that the process that leads with this activation ended."""
    watching = [asyncio.create_task(_watch(node, connect, activation_id), name=f"watch {node}") for node in nodes]
    try:
        done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()  # an error proves nothing
    finally:
        await cancelled(*watching)


async def _watch(node: str, connect: Connect, activation_id: bytes) -> None:
    pause_s = _PAUSE_S[0]
    while True:
        client = await _connected(node, connect)
        try:
            while True:
                if await client.watch(activation_id, wait_ms=_WATCH_MS):
                    return
                pause_s = _PAUSE_S[0]
                await asyncio.sleep(pause_s)  # a node with too many that watch answers at once
        except CallFailed:  # a node of an older release refuses the question
            pause_s = _PAUSE_S[1]
        except LogUnavailable:  # the connection has ended
            pass
        finally:
            await client.close()
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S[1])


async def _connected(node: str, connect: Connect) -> LogClient:
    """Try for ever."""
    pause_s = _PAUSE_S[0]
    while True:
        with suppress(LogUnavailable, LogRefused):
            return await connect(node)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _PAUSE_S[1])
