"""Asks all the time which replicas claim to lead: a deposed replica must not claim it after its successor did."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

import aiohttp

from haproxy.render import ReplicaAddress
from replica.acting.healths import fetch_health

ASK_INTERVAL_S = 0.05


class Claims:
    """Asks every replica's health while the block runs, each separately: a frozen one delays no other."""

    def __init__(self, replicas: list[ReplicaAddress]) -> None:
        self._replicas = replicas
        self._tasks: list[asyncio.Task[None]] = []
        self.newest_epoch = 0
        self.holders: dict[int, str] = {}  # of each epoch that was claimed
        self.stale: list[
            str
        ] = []  # claims that were asked for after a higher epoch had been claimed, or of one epoch by two

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._ask_on(replica)) for replica in self._replicas]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _ask_on(self, replica: ReplicaAddress) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                newest_before = self.newest_epoch
                health = await fetch_health(session, replica)
                if health is not None and health.leads:
                    self._note(replica.name, health.epoch, newest_before)
                await asyncio.sleep(ASK_INTERVAL_S)

    def _note(self, name: str, epoch: int, newest_before: int) -> None:
        holder = self.holders.setdefault(epoch, name)
        if holder != name or epoch < newest_before:
            self.stale.append(f"{name} claims epoch {epoch}, of {holder}, after epoch {newest_before} was claimed")
        self.newest_epoch = max(self.newest_epoch, epoch)
