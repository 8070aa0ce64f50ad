"""Errors of this room. Each has a stable code, what to do about it, and whether trying again can help."""

from __future__ import annotations

from typing import ClassVar

from ha.ending import Cause, Ending


class HaError(Exception):
    """Base of all errors that this package raises on purpose.

    It is no `NotaryError`: this package imports nothing of the notary's. replica/failure.py reads both families.
    """

    code: ClassVar[str] = "HA_ERROR"
    remedy: ClassVar[str] = "See the message."
    retry: ClassVar[bool] = False  # trying again can help

    @property
    def detail(self) -> str:
        """The message alone."""
        return super().__str__()

    @property
    def person(self) -> bool:
        """Do not start again: a person must change something first."""
        return not self.retry

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}. {self.remedy}"


def reason_of(error: BaseException) -> str:
    """Why something ended, as it stands in its history: without the remedy, which is for who meets the error."""
    return (error.detail if isinstance(error, HaError) else str(error).strip()) or type(error).__name__


class SettingsError(HaError):
    """The settings contradict each other."""

    code = "HA_SETTINGS"
    remedy = "Correct the setting that is named, the same in every replica."


class ScopeMismatch(HaError):
    """The server's name of the database is not the configured one. Two names give two lock ids, so two actives."""

    code = "HA_SCOPE_MISMATCH"
    remedy = "Set database.scope to the name that is reported, the same in every replica."


class PoolerDetected(HaError):
    """A connection pooler stands between replica and database. It shares sessions, and with them the lock."""

    code = "HA_POOLER_DETECTED"
    remedy = (
        "Connect the replica to the database itself, not to a pooler. With Oracle, ask for a dedicated server process."
    )


class UnsafeCommitMode(HaError):
    """`synchronous_commit` is off or local: a crash, or the promotion of a standby, may undo an epoch."""

    code = "HA_SYNCHRONOUS_COMMIT_OFF"
    remedy = "Set synchronous_commit to on (or remote_apply) for this database and role."


class WritesNotSynced(HaError):
    """`fsync` or `full_page_writes` is off: a power cut may take back an epoch, or what was published, or tear it."""

    code = "HA_FSYNC_OFF"
    remedy = "Set fsync and full_page_writes to on in postgresql.conf, and reload it; no restart is needed."


class SessionSettingIgnored(HaError):
    """The server does not run the session under the timeouts that make the lock a lease."""

    code = "HA_SESSION_SETTING_IGNORED"
    remedy = "Connect directly to Postgres 14 or newer, with nothing in between that drops start-up options."


class DatabaseNotPrepared(HaError):
    """The database's user lacks a right or a table that the lock session cannot do without."""

    code = "HA_DATABASE_NOT_PREPARED"
    remedy = "Run `notary store migrate`, and give the rights that `notary store roles` prints."


class NoServerLease(HaError):
    """The server never frees the lock of a holder that is frozen or cut off, or frees it too early."""

    code = "HA_NO_SERVER_LEASE"
    remedy = "Limit how long a session may be idle, as runbooks/oracle.md says."


class WitnessUnavailable(HaError):
    """The witness that keeps the sites' term does not answer, or has none. Without the term a site does not serve."""

    code = "HA_SITE_UNCONFIRMED"
    remedy = (
        "Bring the witness back, or the way to it: replicas go on by themselves. It has no term before the first"
        " `notary site take`. If it is lost for good, see runbooks/site-term.md."
    )
    retry = True


class SiteTakenOver(HaError):
    """Another site has the term, or this site's log is not the one that has it. Replicas here do not serve."""

    code = "HA_SITE_TAKEN_OVER"
    remedy = (
        "Leave this site as it is: its log may have records that the other site lacks. To let it serve again, make its"
        " log anew as a copy of the other site's, as runbooks/site-term.md says."
    )


class SiteServes(HaError):
    """A site renews the term, so no other one takes it. Nothing was changed."""

    code = "HA_SITE_SERVES"
    remedy = (
        "Stop the replicas of the site that has the term, then run `notary site take` again: it waits for its lease."
    )
    retry = True


class SiteLogSuperseded(HaError):
    """The log had an earlier term, and another log after it. It lacks what was notarised since. Nothing was changed."""

    code = "HA_SITE_LOG_SUPERSEDED"
    remedy = (
        "Make this site's log anew as a copy of the log that has the term. Only if no replica served since then,"
        " repeat the command with --nothing-was-served."
    )


class LockUnavailable(HaError):
    """No session could be opened. Nothing was asked of the lock."""

    code = "HA_LOCK_UNAVAILABLE"
    remedy = "Check that the database is up and reachable and that the credentials are right; the replica keeps trying."
    retry = True


class LeaseUnavailable(LockUnavailable):
    """No session for the lease could be opened: the log did not answer. Nothing was claimed."""

    code = "HA_LEASE_UNAVAILABLE"
    remedy = (
        "Check with `notary log members` that most log nodes run and reach one another, see runbooks/log-node-loss.md;"
        " the replica keeps trying."
    )


class LockLost(HaError):
    """The session is gone, and with it the lock. The outcome of the statement in flight is unknown."""

    code = "HA_LOCK_LOST"
    remedy = (
        "Nothing: the replica steps down, then tries for the lock again; the next active publishes what the log has."
    )
    retry = True


class ReadOnlyServer(LockLost):
    """The session is on a server that takes no writes, perhaps a demoted primary."""

    code = "HA_READ_ONLY_SERVER"
    remedy = "Check which server is the primary; the replica keeps trying until it reaches a writable one."


class ActivationFailed(HaError):
    """The service could not become active. The lock is given back and this replica holds down."""

    code = "HA_ACTIVATION_FAILED"
    remedy = "Act on the reason given; another replica takes over, and this one tries again after election.hold_down_s."
    retry = True

    def __init__(self, detail: str, cause: Cause = Cause.ACTIVATION_FAILED, code: str = "") -> None:
        """`cause` and `code`: for a more precise report than that an activation failed."""
        super().__init__(detail)
        self.ending = Ending(cause, detail, code or self.code)


class TransitionFailed(HaError):
    """A transition failed or took too long, so that nobody knows what still runs. The process must end."""

    code = "HA_TRANSITION_FAILED"
    remedy = (
        "Nothing at first: the process ends, and its supervisor starts it again. If it recurs, read the log before."
    )
    retry = True
