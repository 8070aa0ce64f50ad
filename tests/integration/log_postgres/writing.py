"""A writer in a process of its own, which the tests kill and freeze: appends until it is ended.

python -m tests.integration.log_postgres.writing DSN NAME
"""

from __future__ import annotations

import asyncio
import sys

from tests.integration.log_postgres.world import opened

PAUSE_S = 0.002


async def write(dsn: str, name: str) -> None:
    """Append `NAME 0`, `NAME 1`, ..., three at a time."""
    async with opened(dsn, answer_max_s=60.0) as log:  # a process that was stopped finds its answer late
        writer, number = await log.open_writer(), 0
        while True:
            writer.append_all([f"{name} {number + at}".encode() for at in range(3)])
            number += 3
            await asyncio.sleep(PAUSE_S)


if __name__ == "__main__":
    asyncio.run(write(*sys.argv[1:]))
