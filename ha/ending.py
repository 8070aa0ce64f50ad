"""Why an activation ended, or failed to begin: one value, from its cause to metric, log line, history and runbook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

DETAIL_MAX_CHARS = 1_000
_TEXT = re.compile(r"(?P<cause>[a-z_]+)(?: (?P<code>[A-Z][A-Z0-9_]+))?(?::? (?P<detail>.*))?", re.DOTALL)


class Cause(StrEnum):
    """A small fixed set, fit for a metric's label. The last nine are set by the elected service."""

    STOP = "stop"
    SWITCHOVER = "switchover"
    ACTIVATION_FAILED = "activation_failed"
    NO_ANSWER = "no_answer"  # on the lock session, in time
    LOCK_LOST = "lock_lost"  # the lock session ended
    CLOCK = "clock"
    SUPERSEDED = "superseded"  # another activation is in force
    LOG_STALLED = "log_stalled"
    SIGNER = "signer"  # the signing key cannot be used
    STORE_REFUSED = "store_refused"  # the database takes no writes, although the lock session lives
    FRAGMENTED = "fragmented"  # lost appends left so many holes in the sequence numbers that a new activation is due
    PAUSE = "pause"  # operators paused service, or resumed it: another barrier is due
    SITE = "site"  # this site has not renewed its term, or another one has it
    FAILED = "failed"  # an error that ends the process; the code says which


@dataclass(frozen=True, slots=True)
class Ending:
    """Cause, a sentence for people, and the stable code of the error that caused it, if any."""

    cause: Cause
    detail: str = ""
    code: str = ""

    def __str__(self) -> str:
        """The text that is left with the epoch. Its first word is the cause, and a code comes second."""
        if not self.code and self.detail.partition(" ")[0] == self.cause:  # "switchover to r2"
            return self.detail[:DETAIL_MAX_CHARS]
        head = f"{self.cause} {self.code}" if self.code else str(self.cause)
        return f"{head}: {self.detail[:DETAIL_MAX_CHARS]}" if self.detail else head


STOPPED = Ending(Cause.STOP)


def read_ending(text: str) -> Ending | None:
    """The ending that a text was made from, "switchover to r2" as its detail; None when it is another release's."""
    match = _TEXT.fullmatch(text)
    if match is None or match["cause"] not in set(Cause):
        return None
    cause, code, detail = Cause(match["cause"]), match["code"] or "", match["detail"] or ""
    is_whole = not code and bool(detail) and not text.startswith(f"{cause}: ")
    return Ending(cause, text if is_whole else detail, code)
