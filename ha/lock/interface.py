"""The lock session: the one dedicated database connection that holds the lock and carries every write.

Contract, for the database forms and the in-memory double alike (one suite tests all of them):

- The lock lives and dies with the session. There is no automatic reconnect: a lost session stays lost, and a new
  session means a new activation.
- The server frees the lock of a session that is silent for `lease_s`, and at once when the session ends.
- A statement whose answer does not come in time is never cancelled: the session is closed, the outcome is unknown.
- `answered_at_s` is when the latest answered statement was *sent*; any answered statement on the session counts.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

CLOSED = "the lock session was closed"  # by its own replica, which knows why
NEVER_S = float("-inf")  # boot time of what has not happened
RELEASE_LEAD_S = 0.01  # a lock that is released for one replica is announced to the others so much earlier


@dataclass(frozen=True, slots=True)
class LockOwner:
    """A session that holds the lock: the server's number for it, and the name of its replica.

    Any login may take it, and call itself what it likes. `user` is the server's word; so is `address`, empty if hidden.
    """

    pid: int
    name: str
    user: str = ""
    address: str = ""

    def is_foreign(self, peers: Collection[str]) -> bool:
        """Whether it is none of the replicas of these names."""
        return self.name not in peers

    def __str__(self) -> str:
        """For people: the holder as the server reports it."""
        details = [f"session {self.pid}"]
        details += [f"user {self.user}"] if self.user else []
        details += [f"from {self.address}"] if self.address else []
        return f"{self.name or 'a session without a name'} ({', '.join(details)})"


@dataclass(frozen=True, slots=True)
class ReleaseNote:
    """What a holder announces when it gives the lock up in order. `to`: for which replica; None for any."""

    by: str
    to: str | None


@dataclass(frozen=True, slots=True)
class LockAnswer:
    """The answer to a request for the lock. `asked_at_s`: boot time when we asked, from which the lease counts.

    `owner` is who holds it when it was refused, None when granted or when the holder was gone again already. `released`
    is, when it was granted, the note with which its last holder gave it up in order, as far as it was heard.
    """

    granted: bool
    asked_at_s: float
    owner: LockOwner | None = None
    released: ReleaseNote | None = None


@dataclass(frozen=True, slots=True)
class LockView:
    """The lock seen from outside. `released`: its last holder gave it up in order, so grace is pointless."""

    owner: LockOwner | None
    released: ReleaseNote | None

    @property
    def free(self) -> bool:
        """Nobody holds the lock."""
        return self.owner is None


@dataclass(frozen=True, slots=True)
class DatabaseIdentity:
    """Which database cluster this is, and which line of its history: two primaries of one cluster differ there."""

    kind: str  # "postgres" or "oracle"
    system_identifier: str
    timeline: int

    def __str__(self) -> str:
        """As it stands in a barrier."""
        return f"{self.kind}:{self.system_identifier}:{self.timeline}"


@dataclass(frozen=True, slots=True)
class ServerLease:
    """What the server does about a holder that is frozen or cut off, as found when the session was opened.

    `frees_after_s`: the longest silence that the server tolerates; None when unknown. `verified`: all of it was
    read from the server; `detail` names the settings, and those that could not be read.
    """

    frees_after_s: float | None
    verified: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Grant:
    """The activation that a lock opens by itself when it is granted: that of a lease, whose claim is in the log."""

    epoch: int
    activation_id: bytes


class LockSession(Protocol):
    """What the election needs of a session. Times are boot time in seconds; all methods raise HaError."""

    @property
    def name(self) -> str:
        """The replica's name, as other replicas see it in LockOwner."""

    @property
    def answered_at_s(self) -> float:
        """When the latest answered statement was sent; NEVER_S before the first. Never falls."""

    @property
    def closed(self) -> bool:
        """True once the session was lost or closed; never false again."""

    @property
    def grant(self) -> Grant | None:
        """The activation that was opened with the lock; None where its holder opens one, or does not hold it."""

    @property
    def clock_skew_s(self) -> float:
        """This replica's wall clock minus the database's, half a round trip taken off: they differ by at least this.

        Measured by `open` and by each question about the lock; 0.0 when no difference can be shown.
        """

    @property
    def server_lease(self) -> ServerLease:
        """How long a silence makes the server free this session's lock; known once it is open."""

    async def open(self) -> None:
        """Connect, and check scope, pooler, writability, durability of commits, and that the timeouts are in force.

        Raises LockUnavailable or ReadOnlyServer (worth retrying, with a new session), ScopeMismatch, PoolerDetected,
        UnsafeCommitMode, WritesNotSynced, SessionSettingIgnored or DatabaseNotPrepared (not worth it).
        """

    async def try_lock(self) -> LockAnswer:
        """Take the lock if it is free; never waits for it. Once granted, asking again is InvariantBroken.

        Raises LockLost when no answer came: the lock may have been granted, so the session is closed.
        """

    async def look(self) -> LockView:
        """Who holds the lock, without touching it."""

    async def confirm(self) -> float:
        """Ask the server whether this very session still holds the lock and may write; returns when we asked.

        Raises LockLost otherwise, and the session is closed.
        """

    async def release(self, to: str | None = None) -> None:
        """Give the lock up on purpose: notify the other replicas, then free it. `close` follows.

        `to`: the replica that shall have it; the others are notified `RELEASE_LEAD_S` before, so that they leave it.
        """

    async def wait_release(self) -> ReleaseNote:
        """Wait for the next note that another holder gave the lock up. After a lost note the next poll shows it."""

    async def close(self, why: str = CLOSED) -> None:
        """End the session, and with it the lock. Prompt, may be repeated, never cancels a statement.

        A task that waits for an answer on this session gets LockLost. `why`: for `wait_closed`.
        """

    async def wait_closed(self) -> str:
        """Return as soon as the session is closed, by either side: the reason in words; the first reason counts.

        The election acts on this report of a session's end only, not on the statements that fail with it.
        """


ConnectionT_co = TypeVar("ConnectionT_co", covariant=True)


class WriteSession(LockSession, Protocol[ConnectionT_co]):
    """The same session as its store sees it: the only way to write to the shared database."""

    def statement(self, name: str) -> AbstractAsyncContextManager[ConnectionT_co]:
        """Use the connection exclusively for one statement or one transaction, `answer_max_s` at most in all.

        Users take turns in the order of arrival. A normal exit from the block counts as a heartbeat sent at its entry,
        if the server answered anything meanwhile. LockLost when the outcome is unknown: deadline, broken
        connection, the server's statement_timeout, a cancelled task, a transaction left open. Other errors of the
        database are answers and pass through. `name` appears in errors and logs.
        """

    async def database_identity(self) -> DatabaseIdentity:
        """The cluster and timeline that this session writes to, for the barrier."""
