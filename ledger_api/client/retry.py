"""When to send the same request again: a pure function of what has happened so far (reference: Corda's flow timer)."""

from __future__ import annotations

from dataclasses import dataclass

from replica.notary.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How long to retry, and how often. Every attempt has the same ids, so a retry is always safe.

    The pause after failed attempt n, from 0, is `timeout_s * backoff_base ** min(n, max_restart_count)`, up to `jitter`
    times itself longer. A longer estimate of the server replaces it. The defaults suit a replica that takes over within
    half a second; a Corda node has 30 s, 1.8, 6 and 0.5.
    """

    timeout_s: float = 0.05
    backoff_base: float = 1.8
    max_restart_count: int = 3  # from then on pauses grow no further; attempts go on until the deadline
    jitter: float = 0.5  # so that many clients do not come back in the same moment
    deadline_s: float = 30.0  # from the first attempt; then the caller gets the last NotNow
    attempt_max_s: float = 10.0  # longest wait for one answer
    estimate_max_s: float = 86_400.0  # longest estimate of the server's that is waited for

    def __post_init__(self) -> None:
        good = self.timeout_s > 0 and self.backoff_base >= 1 and self.max_restart_count >= 0 and self.jitter >= 0
        if not good or self.attempt_max_s <= 0 or self.estimate_max_s <= 0:
            raise ConfigError("a retry policy has positive times, no negative figure, and backoff_base is at least 1")

    @property
    def delay_max_s(self) -> float:
        """The longest pause of our own, without jitter."""
        return self.timeout_s * self.backoff_base**self.max_restart_count

    def delay_s(self, attempt: int, estimate_s: float, random: float) -> float:
        """The pause after failed attempt number `attempt`, from 0. `random` is uniform in [0, 1).

        `estimate_s` is the server's estimate; 0 without one.
        """
        own_s = self.timeout_s * self.backoff_base ** min(attempt, self.max_restart_count)
        return max(own_s * (1 + self.jitter * random), self.believed_s(estimate_s))

    def believed_s(self, estimate_s: float) -> float:
        """How much of a server's estimate the client waits for. An absurd or missing figure must not delay a caller."""
        return min(estimate_s, self.estimate_max_s) if estimate_s > 0 else 0.0
