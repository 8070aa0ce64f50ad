"""Connects to the one of several database hosts that takes writes, even if the first host never answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeVar

ConnectionT = TypeVar("ConnectionT")

STAGGER_S = 0.25  # RFC 8305: the next host is tried beside one that has not answered for so long
_LISTS = ("host", "hostaddr", "port")


def each_host(parameters: Mapping[str, object]) -> list[dict[str, object]]:
    """Split libpq's parameters with lists of hosts into parameters of one host each, in their order.

    A port that is given once applies to every host. Lists of different lengths are returned unchanged: libpq refuses
    them.
    """
    lists = {key: str(parameters[key]).split(",") for key in _LISTS if parameters.get(key)}
    count = max((len(values) for key, values in lists.items() if key != "port"), default=1)
    if any(len(values) not in ({1, count} if key == "port" else {count}) for key, values in lists.items()):
        return [dict(parameters)]
    return [
        {**parameters, **{key: values[min(at, len(values) - 1)] for key, values in lists.items()}}
        for at in range(count)
    ]


async def first_connected(
    parameters: Mapping[str, object],
    connect: Callable[[Mapping[str, object]], Coroutine[None, None, ConnectionT]],
    close: Callable[[ConnectionT], None],
) -> ConnectionT:
    """The connection that `connect` makes to the first host that takes it.

    Hosts are tried in order, each `STAGGER_S` after the one before, or as soon as one has failed. Otherwise one
    unreachable host would delay all others by a whole connection time-out. `connect` raises ConnectionError, and
    undoes its work when it is cancelled; a connection that it makes too late is closed. Raises ConnectionError with
    each host's error.
    """
    hosts, running, refusals = deque(each_host(parameters)), set[asyncio.Task[ConnectionT]](), []
    try:
        while hosts or running:
            if hosts:
                running.add(asyncio.create_task(connect(hosts.popleft())))
            limit_s = STAGGER_S if hosts else None
            done, _ = await asyncio.wait(running, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                running.discard(task)
                try:
                    return task.result()
                except ConnectionError as error:
                    refusals.append(str(error).strip())
    finally:
        for task in running:
            task.cancel()
        for late in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(late, BaseException):
                close(late)
    raise ConnectionError("; ".join(refusals))
