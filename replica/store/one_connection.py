"""What the completion readers of both databases have in common: one connection, made when needed, used in turn."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from replica.notary.errors import StoreUnavailable

PAGE_ROWS = 500
PAGE_DETAIL_BYTES = 4_000_000
SCAN_ROWS = 20_000
ATTEMPTS_MAX = 100
CONNECT_MAX_S = 3
ANSWER_MAX_S = 5.0


class OneConnectionReader(ABC):
    """The part of a CompletionReader that asks. After any error the connection is given up, and the next question makes
    another: what was on its way on the old one is never taken for an answer.
    """

    errors: ClassVar[tuple[type[Exception], ...]]  # the driver's, and OSError, of which TimeoutError is one

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def reset(self) -> None:
        """See CompletionReader."""
        async with self._turn:
            await self._hang_up()

    async def close(self) -> None:
        """See CompletionReader."""
        await self.reset()

    async def _ask(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """The rows of one of the named statements. Raises StoreUnavailable."""
        async with self._turn:
            try:
                async with asyncio.timeout(ANSWER_MAX_S):
                    return await self._rows(name, values)
            except self.errors as error:
                await self._hang_up()
                raise StoreUnavailable(f"{name}: {str(error).strip() or 'no answer in time'}") from None
            except BaseException:
                await self._hang_up()
                raise

    @abstractmethod
    async def _rows(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Ask, on the connection there is or a new one; raises what the driver raises."""

    @abstractmethod
    async def _hang_up(self) -> None:
        """Give the connection up, if there is one; does not raise."""
