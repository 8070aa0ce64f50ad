"""How background tasks end."""

from __future__ import annotations

import asyncio
from typing import Any


async def cancelled(*tasks: asyncio.Future[Any]) -> None:
    """Cancel tasks and return once each has ended. What they raise is nobody's any more."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
