"""What tools ask of a request log, and do to it, without reading or writing a record."""

from __future__ import annotations

from typing import Protocol


class LogAdmin(Protocol):
    """One connection of a tool's. Every question raises LogUnavailable, and LogRefused when there is no such log."""

    async def topic_id(self) -> str:
        """The identity of the log."""

    async def first_offset(self) -> int:
        """The oldest offset that the log still has."""

    async def end_offset(self) -> int:
        """The offset that the next record will get."""

    async def create(self) -> None:
        """Create the log unless it exists."""

    async def close(self) -> None:
        """End; may be repeated."""
