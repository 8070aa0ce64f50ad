"""Limits on the lines that a front end logs about its callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class LogLimit:
    """Limits log lines a second: a flood of bad requests must not become a flood of log lines."""

    def __init__(self, per_s: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._per_s = per_s
        self._second = -1
        self._let_through = 0
        self._withheld = 0

    def take(self) -> int | None:
        """None: do not log. Otherwise: how many lines were withheld since the last one."""
        second = int(self._loop.time())
        if second != self._second:
            self._second, self._let_through = second, 0
        if self._let_through >= self._per_s:
            self._withheld += 1
            return None
        self._let_through += 1
        withheld, self._withheld = self._withheld, 0
        return withheld

    def write(self, log: Callable[..., object], event: str, **values: object) -> None:
        """Log the event, unless there were enough lines this second."""
        withheld_count = self.take()
        if withheld_count is not None:
            log(event, **values, withheld=withheld_count)


class LogLimits:
    """One limit for callers' mistakes, and one for our own errors, whose tracebacks are long."""

    def __init__(self, per_s: int) -> None:
        self.refused = LogLimit(per_s)
        self.failed = LogLimit(max(1, per_s))
