"""Lines about void records: one a second at most, so that whoever floods the log does not flood the lines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import structlog

from replica.notary.reading import Void

log = structlog.get_logger()

BETWEEN_LINES_S = 1.0


class VoidLines:
    """Gathers void records and says them together. The first one is said at once."""

    def __init__(self) -> None:
        self._reasons: Counter[str] = Counter()
        self._first_offset = 0
        self._last_offset = 0
        self._next_at_s = float("-inf")

    def take(self, voids: Sequence[Void], now_s: float) -> None:
        """Note those of one run, none included, and say all that gathered if the last line is a second old."""
        if voids:
            self._first_offset = self._first_offset if self._reasons else voids[0].offset
            self._last_offset = voids[-1].offset
            self._reasons.update(void.reason.value for void in voids)
        if self._reasons and now_s >= self._next_at_s:
            reasons, self._reasons = self._reasons, Counter()
            self._next_at_s = now_s + BETWEEN_LINES_S
            log.warning("records_void", first_offset=self._first_offset, last_offset=self._last_offset, reasons=reasons)
