"""What the completion readers of both databases have in common: one connection, made when needed, used in turn."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from replica.notary.errors import StoreUnavailable
from replica.store.interface import Row
from replica.store.reader import Scan

PAGE_ROWS = 500  # of at most 9 kB each, and their details
SCAN_ROWS = 2_000
SCAN_DETAIL_BYTES = 8_000_000  # searched by one question: takes about 30 ms
ATTEMPTS_MAX = 100
CONNECT_MAX_S = 3
ANSWER_MAX_S = 5.0


class OneConnectionReader(ABC):
    """The part of a CompletionReader that asks. Any error ends the connection, and the next question makes a new one.
    So a late result on the old connection is never taken for an answer.
    """

    errors: ClassVar[tuple[type[Exception], ...]]  # the driver's, and OSError, of which TimeoutError is one
    _connection: object | None

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
            was_open = self._connection is not None
            try:
                async with asyncio.timeout(ANSWER_MAX_S):
                    try:
                        return await self._rows(name, values)
                    except self.errors:
                        if not was_open:
                            raise
                    await self._hang_up()  # it may have ended long ago, while nobody asked
                    return await self._rows(name, values)
            except self.errors as error:
                await self._hang_up()
                raise StoreUnavailable(f"{name}: {str(error).strip() or 'no answer in time'}") from None
            except BaseException:
                await self._hang_up()
                raise

    @abstractmethod
    async def _rows(self, name: str, values: Mapping[str, object]) -> list[tuple[Any, ...]]:
        """Ask, on the existing connection or a new one. Raises the driver's errors."""

    @abstractmethod
    async def _hang_up(self) -> None:
        """Close the connection, if there is one. Does not raise."""


def scan_end(last: int | None) -> int:
    """How far a search may go. Raises StoreUnavailable when there is nothing to search where there should be."""
    if last is None:
        raise StoreUnavailable("completions are missing, or are being pruned")
    return int(last)


def scan_of(rows: list[Row], last_found: int, searched_to: int) -> Scan:
    """The result of a search, complete up to `last_found`. The caller searches again for the rest."""
    return Scan(rows, rows[-1][0] if rows and rows[-1][0] < last_found else searched_to)
