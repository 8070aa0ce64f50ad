"""Limits the rate of each user, or each connection, at a front end: one token bucket each, filled steadily.

Where several replicas serve, each one's bucket holds its part of the burst, and fills with its part of the rate. A
replica that goes away is noticed a second later, so for so long the parts sum up to less or more than the whole. A
connection reaches one replica: nothing shares its bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

from aiohttp import web

from ledger_api.server.authorisation import Caller
from ledger_api.server.settings import ApiSettings
from replica.notary.codes import Code
from replica.notary.errors import BadRequest

BUCKETS_MAX = 10_000


class RateExceeded(BadRequest):
    """Nothing was done; ask again after `retry_after_s`."""

    default_code = Code.RATE_EXCEEDED

    def __init__(self, detail: str, retry_after_s: float) -> None:
        super().__init__(detail)
        self.retry_after_s = retry_after_s


class RateLimit:
    """Buckets of `burst` submissions or rows, filled with `per_s` a second. One that is full needs no memory. Pure."""

    def __init__(self, per_s: float, burst: int) -> None:
        self._per_s = per_s
        self._burst = float(burst)
        self._buckets: dict[Hashable, tuple[float, float, int]] = {}  # what was left, when, and the sharers

    def take(self, key: Hashable, count: int, now_s: float, sharers: int = 1) -> float:
        """Take `count` and return 0.0. With too few left, take nothing and return the seconds until there are enough.

        `sharers`: so many limits, this one among them, have buckets for the same callers now. One call with more than a
        bucket's part of the burst is taken from a full bucket, and what it overdraws is paid before the next one.
        """
        wait_s = self.wait_s(key, count, now_s, sharers)
        if not wait_s:
            self.spend(key, count, now_s, sharers)
        return wait_s

    def wait_s(self, key: Hashable, count: int, now_s: float, sharers: int = 1) -> float:
        """Seconds until there are enough; 0.0 when there are."""
        lacking = min(count, self._burst / sharers) - self._left(key, now_s, sharers)
        return max(0.0, lacking / (self._per_s / sharers))

    def spend(self, key: Hashable, count: int, now_s: float, sharers: int = 1) -> None:
        """Take `count` in any case: what was used already."""
        left = self._left(key, now_s, sharers) - count
        if len(self._buckets) >= BUCKETS_MAX:
            self._forget_full_ones(now_s)
        self._buckets[key] = (left, now_s, sharers)

    def _left(self, key: Hashable, now_s: float, sharers: int) -> float:
        per_s, burst = self._per_s / sharers, self._burst / sharers
        left, at_s, _ = self._buckets.get(key, (burst, now_s, sharers))
        return min(burst, left + (now_s - at_s) * per_s)

    def _forget_full_ones(self, now_s: float) -> None:
        self._buckets = {
            key: (left, at_s, sharers)
            for key, (left, at_s, sharers) in self._buckets.items()
            if left + (now_s - at_s) * self._per_s / sharers < self._burst / sharers
        }


def rows_limit(settings: ApiSettings) -> RateLimit | None:
    """The limit on the rows that are looked through for each caller; None where there is none."""
    per_s = settings.scan_rows_per_s
    return RateLimit(per_s, round(2 * per_s)) if per_s else None


class Rates:
    """Charges each caller for its submissions and reads; `holder_of` identifies it.

    `serving`: how many replicas serve now, this one among them.
    """

    def __init__(self, settings: ApiSettings, now_s: Callable[[], float], serving: Callable[[], int]) -> None:
        self._serving = serving
        self._limit = RateLimit(settings.rate_per_s, settings.rate_burst) if settings.rate_per_s else None
        self._now_s = now_s

    def charge(self, caller: Caller, request: web.BaseRequest, count: int) -> None:
        """Take `count` submissions or reads from the caller's share. Raises RateExceeded."""
        if self._limit is None:
            return
        sharers = 1 if caller.subject is None else self._serving()
        wait_s = self._limit.take(caller.subject or id(request.protocol), count, self._now_s(), sharers)
        if wait_s > 0:
            who = "this connection" if caller.subject is None else f"user {caller.subject!r}"
            raise RateExceeded(f"{who} has used its share", wait_s)
