"""Brokers that are killed and come back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from replica.local.kafka import KafkaBroker
from tests.faults.lab.lab import Lab
from tests.faults.lab.scene import within

START_MAX_S = 60.0
IN_SYNC_MAX_S = 90.0


@asynccontextmanager
async def down(lab: Lab, broker: KafkaBroker) -> AsyncIterator[None]:
    """Kill a broker, and start it again after the block; return once all are in sync."""
    await broker.process.kill()
    try:
        yield
    finally:
        await start_again(lab, broker)


async def start_again(lab: Lab, broker: KafkaBroker) -> None:
    """Start a broker that has ended; returns once it has all of the log."""
    broker.process.start()
    await broker.process.wait_ready(broker.listens, START_MAX_S)
    await in_sync(lab, len(lab.kafka.brokers))


async def in_sync(lab: Lab, count: int) -> None:
    """Return once this many brokers have the whole log. Raises ServerFailed."""

    async def so_many() -> bool:
        return len(await asyncio.to_thread(lab.in_sync)) == count

    await within(IN_SYNC_MAX_S, so_many, f"not {count} brokers in sync")
