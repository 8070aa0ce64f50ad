"""The story of a run: one line per event with virtual time, who, and what."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from hashlib import sha256
from typing import Any

import structlog

from tests.simulation.process import current_process


class Story:
    """Collects events; makes text of them only on request."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: list[tuple[float, str, str, dict[str, Any]]] = []

    def tell(self, who: str, what: str, **details: Any) -> None:
        """Note an event."""
        self._events.append((self._loop.time(), who, what, details))

    def lines(self) -> Iterator[str]:
        """The events, readable."""
        for at_s, who, what, details in self._events:
            text = " ".join(f"{name}={_text(value)}" for name, value in details.items() if value is not None)
            yield f"{at_s:9.4f} {who:<8} {what}{' ' if text else ''}{text}"

    def digest(self) -> str:
        """SHA-256 of all lines: two runs with the same digest went the same way."""
        digest = sha256()
        for line in self.lines():
            digest.update(line.encode() + b"\n")
        return digest.hexdigest()

    @contextmanager
    def hears_logs(self) -> Iterator[None]:
        """Add the product's log lines to the story, each under the replica that logs it."""
        before = structlog.get_config()
        structlog.configure(processors=[self._heard], cache_logger_on_first_use=False)
        try:
            yield
        finally:
            structlog.configure(**before)

    def _heard(self, _: Any, method: str, event: MutableMapping[str, Any]) -> Any:
        process = current_process()
        what = event.pop("event")
        event.pop("exc_info", None)
        self.tell("world" if process is None else process.name, f"[{method}] {what}", **event)
        raise structlog.DropEvent


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value[:4].hex()
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
