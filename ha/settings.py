"""Settings of leadership, and the argument why they are safe.

The server side. The lock lives in a session whose `idle_session_timeout` is the lease. The server starts to count when
it has answered a statement. So it frees the lock no earlier than `lease_s` after the holder *sent* the last statement
that was answered, whatever froze or cut off the holder. (A session that is killed frees the lock at once; see below.)
No timeout of the server runs while it waits for the rest of a statement. Then a peer ends the session after the lease.
That is no earlier either, because this statement was sent after the one that the holder's claim counts from.

The holder's side. The holder counts from the same moment of sending, on a clock that includes suspension. It claims to
lead only while `now - sent < lease_s - margin_s`. Health checks and answers evaluate this when they are sent, so a
process that was stopped answers "passive" from its first answer on. Hence:

1. Without killed sessions no two replicas claim to lead at one time: the old claim ends `margin_s` before the lock can
   be free. The margin pays for clocks that run at slightly different rates.
2. `tick_s <= margin_s / 2`: stopping begins before the server can give the lock away.
3. `heartbeat_s <= lease_s / 5`: one lost heartbeat, or a few late ones, does not cost the lock.
4. `heartbeat_s + answer_max_s <= lease_s - margin_s`: a question that hangs is given up before the claim ends by
   itself; the outcome of the statement is then unknown and the session is closed.
5. `statement_max_s < answer_max_s`: where it can, the server gives up first, and reports it.
6. `heartbeat_s + drain_max_s <= lease_s - margin_s`: an orderly step-down ends, or the process does, while the session
   still holds the lock, although it sends no heartbeat meanwhile.

So a core may stand still for `lease_s - margin_s - heartbeat_s`, less a tick and an answer, and still hold its claim
when it goes on: its last answered statement was sent that much before. A balancer must not be less patient than that.

A killed session, or a server that fails over, frees the lock at once, and its holder learns of it one question later.
Timing only shortens that interval. Two other rules make it harmless: database writes use the lock's own session, and a
log record counts only with the activation id in force.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Literal

from ha.errors import SettingsError

HEARTBEATS_PER_LEASE_MIN = 5
CLIENT_CHECK_S = 1.0  # how often a busy server looks whether its client is still there


SETTING_MIN_S = 0.001  # servers count milliseconds, and take 0 for no limit at all
SETTING_MAX_S = 86_400.0  # no setting here is meant to exceed a day; this also refuses infinity and NaN


def _setting(default: float, description: str, *, low: float = SETTING_MIN_S, high: float = SETTING_MAX_S) -> float:
    """A field that knows its description, which commented configuration files are written from, and its range."""
    return field(default=default, metadata={"description": description, "low": low, "high": high})


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
    """When a replica asks for the lock, keeps it and gives it up. Seconds throughout.

    `lease_s` is the knob: shorter finds a frozen active sooner, longer forgives longer stalls.
    """

    kind: Literal["database", "lease"] = field(
        default="database",
        metadata={
            "description": "What leadership is: database: an advisory lock there; lease: a lease over the request log,"
            " where replicas share no database (docs/decisions/0015-lease.md). The same for all replicas."
        },
    )
    lease_s: float = _setting(3.0, "The server frees the lock of a silent session after this.")
    heartbeat_s: float = _setting(0.4, "Between two checks that the lock is still held: the heartbeat.")
    margin_s: float = _setting(0.5, "The holder stops this much before the lease is over.")
    answer_max_s: float = _setting(2.0, "Longest wait for an answer on the lock session; then the session is closed.")
    statement_max_s: float = _setting(1.0, "The server's statement_timeout.")
    connect_max_s: float = _setting(2.0, "Longest wait for one database host to accept a connection.")
    reconnect_max_s: float = _setting(0.5, "Longest pause between attempts to open a session.")
    tick_s: float = _setting(0.025, "Between two looks of the election at its clock.")
    retry_s: float = _setting(0.05, "Between a passive's polls of the lock.")
    retry_jitter: float = _setting(0.5, "Each poll is later by up to this share.", low=0.0, high=1.0)
    grace_s: float = _setting(0.0, "Passives leave a lock that was not released on purpose alone for so long.", low=0.0)
    hold_down_s: float = _setting(
        5.0,
        "A replica that failed does not ask for the lock before, if anybody else takes it.",
        low=0.0,
    )
    lag_wait_max_s: float = _setting(
        1.0, "Longest wait of a passive whose index lags, so that a warmer one goes first.", low=0.0
    )
    catch_up_records_per_s: float = _setting(
        50_000.0, "Turns the records that a passive lags into seconds that it waits.", low=1.0, high=1e9
    )
    clock_skew_max_s: float = _setting(1.0, "A replica further from the database's clock neither asks nor leads.")
    drain_max_s: float = _setting(2.0, "Longest step-down; then the process ends.")
    activation_max_s: float = _setting(900.0, "Longest activation; then it counts as failed.")
    switchover_wait_s: float = _setting(3.0, "After this a switchover that nobody accepted is undone.")

    @property
    def confirmed_age_max_s(self) -> float:
        """Oldest answered statement, counted from its sending, on which the holder still claims to lead."""
        return self.lease_s - self.margin_s

    @property
    def stall_max_s(self) -> float:
        """A core that stands still for less keeps its claim, and nobody takes over."""
        return self.lease_s - self.margin_s - self.heartbeat_s

    @property
    def poll_max_s(self) -> float:
        """Longest time between two polls of a passive."""
        return self.retry_s * (1 + self.retry_jitter) + self.tick_s

    @property
    def unclaimed_s(self) -> float:
        """After so long a free lock has no taker: the longest delay of any replica that may take it, plus a poll.

        Then a replica in hold-down takes it early, because no other replica is there to go first: all were killed, say.
        """
        return self.grace_s + self.lag_wait_max_s + 2 * self.poll_max_s

    def __post_init__(self) -> None:
        if self.kind not in ("database", "lease"):
            raise SettingsError(f"kind is {self.kind!r}; it is database or lease")
        for setting in fields(self):
            if "low" not in setting.metadata:
                continue
            value, low, high = getattr(self, setting.name), setting.metadata["low"], setting.metadata["high"]
            if not low <= value <= high:  # NaN is in no range
                raise SettingsError(f"{setting.name} is {value}; its range is {low:g} to {high:g}")
        for rule in self.rules():
            if not rule.holds:
                raise SettingsError(f"{rule.name} is {rule.value:g}, more than {rule.limit_name} = {rule.limit:g}")
        if self.statement_max_s >= self.answer_max_s:
            raise SettingsError(f"statement_max_s {self.statement_max_s} is not below answer_max_s {self.answer_max_s}")

    def rules(self) -> tuple[Rule, ...]:
        """The rules of the module's text with these settings' figures, in its order, and what keeps polls in bounds."""
        claim, claim_s = "lease_s - margin_s", self.confirmed_age_max_s
        taken_s = self.poll_max_s + self.lag_wait_max_s
        return (
            Rule("tick_s", self.tick_s, "margin_s / 2", self.margin_s / 2, "stop before the lock can be given away"),
            Rule(
                "heartbeat_s",
                self.heartbeat_s,
                "lease_s / 5",
                self.lease_s / HEARTBEATS_PER_LEASE_MIN,
                "one lost heartbeat does not cost the lock",
            ),
            Rule(
                "heartbeat_s + answer_max_s",
                self.heartbeat_s + self.answer_max_s,
                claim,
                claim_s,
                "give a question up before the claim ends by itself",
            ),
            Rule(
                "statement_max_s", self.statement_max_s, "answer_max_s", self.answer_max_s, "the server gives up first"
            ),
            Rule(
                "heartbeat_s + drain_max_s",
                self.heartbeat_s + self.drain_max_s,
                claim,
                claim_s,
                "an orderly step-down ends while the lock is still held",
            ),
            Rule("retry_jitter", self.retry_jitter, "1", 1.0, "polls come once in a while"),
            Rule(
                "the longest pause between polls",
                self.poll_max_s,
                "lease_s / 2",
                self.lease_s / 2,
                "a free lock is seen soon",
            ),
            Rule(
                "a peer's poll and lag wait",
                taken_s,
                "switchover_wait_s",
                self.switchover_wait_s,
                "a switchover is not undone while a peer is on its way",
            ),
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """One inequality of the safety argument: `value` must not exceed `limit`, `because`."""

    name: str
    value: float
    limit_name: str
    limit: float
    because: str

    @property
    def holds(self) -> bool:
        """Whether `value` stays within `limit`; rounding in the last digit is ignored."""
        return self.value <= self.limit + 1e-9


class Fault(StrEnum):
    """How an active can fail, as far as it decides how soon the lock is free."""

    STOPPED = "stopped"  # in order, or by switchover; the lock is released on purpose
    KILLED = "killed"  # the process is gone and its kernel closed the sockets
    KILLED_WITH_NODE = "killed_with_node"  # the same, and with it the log's server beside it
    FROZEN = "frozen"  # stopped, suspended or cut off: the session is silent


@dataclass(frozen=True, slots=True)
class BudgetStep:
    """One addend of the time from a fault until a peer holds the lock."""

    name: str
    setting: str  # what to change to change it
    worst_s: float


@dataclass(frozen=True, slots=True)
class EndSeen:
    """How soon a log whose servers stand beside the replicas is known to show that a holder's process ended; seconds.

    `with_node_s`: if the server beside it ended as well; None: then nobody sees it.
    """

    alone_s: float
    with_node_s: float | None
    with_node_setting: str


def detection_budget(settings: ElectionSettings, fault: Fault, seen: EndSeen | None = None) -> tuple[BudgetStep, ...]:
    """The worst case from the fault until a peer that reaches the log holds the lock, step by step. `seen`: see there.

    What follows (epoch, log, barrier, catching up, publishing, health check, the client's retry) is for others to add.
    """
    freed = _freed_by_a_server(settings, fault) if settings.kind == "database" else _freed_lease(settings, fault, seen)
    grace_s = 0.0 if fault is Fault.STOPPED else settings.grace_s
    return (
        freed,
        BudgetStep("a passive polls the lock", "retry_s, retry_jitter, tick_s", settings.poll_max_s),
        BudgetStep("grace for the old active", "grace_s", grace_s),
        BudgetStep("a passive that lags lets others go first", "lag_wait_max_s", settings.lag_wait_max_s),
    )


def _freed_by_a_server(settings: ElectionSettings, fault: Fault) -> BudgetStep:
    match fault:
        case Fault.STOPPED:
            return BudgetStep("the active steps down and releases the lock", "drain_max_s", settings.drain_max_s)
        case Fault.KILLED | Fault.KILLED_WITH_NODE:
            what = "the server sees that the client is gone, at the latest when its statement ends"
            return BudgetStep(what, "statement_max_s", min(CLIENT_CHECK_S, settings.statement_max_s))
        case Fault.FROZEN:
            return BudgetStep("the lease of the silent session runs out", "lease_s", settings.lease_s)


def _freed_lease(settings: ElectionSettings, fault: Fault, seen: EndSeen | None) -> BudgetStep:
    """A holder whose end nobody sees is silent, and the last question to the log takes a heartbeat at most."""
    silent_s = settings.lease_s + settings.heartbeat_s
    silent = BudgetStep("the holder is silent for the whole lease", "lease_s, heartbeat_s", silent_s)
    match fault:
        case Fault.STOPPED:
            return BudgetStep("the active steps down and releases the lease", "drain_max_s", settings.drain_max_s)
        case Fault.KILLED if seen is not None:
            return BudgetStep("the log node beside it sees its process end", "nothing to set", seen.alone_s)
        case Fault.KILLED_WITH_NODE if seen is not None and seen.with_node_s is not None:
            what = "the other log nodes see both end, and elect a leader"
            return BudgetStep(what, seen.with_node_setting, seen.with_node_s)
        case _:
            return silent
