"""When to send the same request again: a pure function of what has happened so far."""

from __future__ import annotations

from dataclasses import dataclass

from replica.notary.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to keep on. The same ids go out each time, so sending again is always safe."""

    deadline_s: float = 30.0  # from the first attempt; then the caller gets the last NotNow
    attempt_max_s: float = 10.0  # longest wait for one answer
    delay_first_s: float = 0.05
    delay_max_s: float = 2.0  # of our own; what the server asks for may be longer
    jitter: float = 0.5  # so that many clients do not come back in the same moment

    def __post_init__(self) -> None:
        if not (0 < self.delay_first_s <= self.delay_max_s and self.attempt_max_s > 0 and self.jitter >= 0):
            raise ConfigError("a retry policy has positive times, and delay_first_s is at most delay_max_s")

    def delay_s(self, attempt: int, asked_s: float, random: float) -> float:
        """The wait after failed attempt number `attempt`, from 0; the server's wish counts when it is longer.

        `random` is uniform in [0, 1).
        """
        own_s = min(self.delay_first_s * 2.0 ** min(attempt, 30), self.delay_max_s)
        return max(own_s, asked_s) * (1 + self.jitter * random)
