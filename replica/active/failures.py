"""Submissions on which the core fails one by one: an unforeseen value must affect its sender only.

Such a failure must not reach the task that admits all submissions. It would end the replica, and then the next active,
for as long as the client repeats the submission.
"""

from __future__ import annotations

import structlog

from ha.clock import Clock
from replica.notary.answers import NotNow
from replica.notary.codes import Code

log = structlog.get_logger()

_LOG_EVERY_S = 1.0


class SubmissionFailures:
    """Answers each failed submission, counts it, and logs at most one a second with its traceback."""

    def __init__(self, clock: Clock, retry_after_s: float) -> None:
        self._clock = clock
        self._retry_after_s = retry_after_s
        self._logged_at_s = float("-inf")
        self._untold = 0
        self.count = 0

    def answer(self, submission_id: str, error: Exception) -> NotNow:
        """The answer to the sender of this submission; other submissions go on."""
        self.count += 1
        now_s = self._clock.boottime_s()
        if now_s - self._logged_at_s < _LOG_EVERY_S:
            self._untold += 1
        else:
            log.error("submission_failed", submission_id=repr(submission_id), untold=self._untold, exc_info=error)
            self._logged_at_s, self._untold = now_s, 0
        detail = "the replica failed on this submission alone; it has no effect"
        return NotNow(Code.INTERNAL.name, detail, self._retry_after_s)
