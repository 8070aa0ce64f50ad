"""The time budget of a fail-over: the worst case of each step, from the settings that decide it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ha.lock.interface import ServerLease
from ha.settings import ElectionSettings, EndSeen, Fault, detection_budget
from haproxy.render import HaproxySettings
from ledger_api.client.retry import RetryPolicy
from replica.log.raft.log_settings import RaftLogSettings
from replica.log.raft.settings import split_address
from replica.log.settings import LogSettings

FAULTS = {
    Fault.STOPPED: "the active is stopped in order, or hands over",
    Fault.KILLED: "the active's process dies",
    Fault.KILLED_WITH_NODE: "the active's process and its log node die",
    Fault.FROZEN: "the active is frozen, suspended or cut off, or its machine dies",
}


END_SEEN_S = 0.05  # a turn of a log node's event loop, on a busy machine
_REDIAL_S = 0.05  # until a log node finds that nobody listens where another one was
_ROUND_TRIP_S = 0.005


@dataclass(frozen=True, slots=True)
class Step:
    """One step on the way from the fault to the first answer. `worst_s` None: not known without a measurement.

    `meanwhile`: it goes on beside the others, and counts only if it takes longer than all of them.
    """

    name: str
    setting: str
    worst_s: float | None
    meanwhile: bool = False


@dataclass(frozen=True, slots=True)
class Budget:
    """All steps for one kind of fault, in order."""

    fault: Fault
    steps: tuple[Step, ...]

    @property
    def known_s(self) -> float:
        """The sum of what is known, in seconds: the longest outage, but for what is not measured."""
        *server, retry = self.steps
        return _longest(server) + (retry.worst_s or 0.0)

    @property
    def complete(self) -> bool:
        """Whether every step is known."""
        return all(step.worst_s is not None for step in self.steps)


def failover_budget(
    election: ElectionSettings,
    haproxy: HaproxySettings,
    retry: RetryPolicy,
    fault: Fault,
    activation_steps_s: Mapping[str, float] | None,
    *,
    lease: ServerLease | None = None,
    seen: EndSeen | None = None,
) -> Budget:
    """The budget for one kind of fault; `activation_steps_s` as an active replica has measured them, None if none is.

    A measurement is an observation, not a bound: it grows with the work that the old active left undone. `lease`: how
    the server treats a silent session, if not by `lease_s`. `seen`: how soon the log shows the end of a process.
    """
    detection = [
        Step(step.name, _decider(step.setting), step.worst_s) for step in detection_budget(election, fault, seen)
    ]
    if fault is Fault.FROZEN and lease is not None:
        detection[0] = Step(detection[0].name, f"server: {lease.detail}", lease.frees_after_s)
    if activation_steps_s is None:
        activation = [Step("activation: epoch, log writer, barrier, publishing", "not measured here", None)]
    else:
        activation = [Step(f"activation: {name}", "measured", took_s) for name, took_s in activation_steps_s.items()]
    given_up_s = haproxy.mark_down_max_s if fault is Fault.FROZEN else haproxy.refused_max_s
    balancing = [
        Step("HAProxy finds the new active", "haproxy: check_interval_down_s, rise", haproxy.mark_up_max_s),
        Step(
            "HAProxy gives the old active up",
            "haproxy: check_interval_s, check_timeout_s, fall",
            given_up_s,
            meanwhile=True,
        ),
    ]
    server = [*detection, *activation, *balancing]
    figures = "client: timeout_s, backoff_base, max_restart_count, jitter"
    pause = Step("the client's pause between attempts", figures, retry_max_s(retry, _longest(server)))
    return Budget(fault, (*server, pause))


def faults_of(log: LogSettings) -> list[Fault]:
    """The kinds of end that a replica beside such a log can have."""
    return [fault for fault in FAULTS if fault is not Fault.KILLED_WITH_NODE or isinstance(log, RaftLogSettings)]


def end_seen_by(log: LogSettings) -> EndSeen | None:
    """How soon log nodes show that a process ended; None for a log without them.

    The other nodes see it only if they run on the same machine. They stand for election one message apart.
    """
    if not isinstance(log, RaftLogSettings):
        return None
    hosts = {split_address(address)[0] for address in log.addresses.values()}
    timeouts = log.timeouts()
    waits_ms = max(len(log.addresses) - 2, 0) * timeouts.message_timeout_ms + timeouts.tick_ms
    elected_s = END_SEEN_S + _REDIAL_S + waits_ms / 1_000 + (2 + timeouts.pre_vote) * _ROUND_TRIP_S
    return EndSeen(END_SEEN_S, elected_s if len(hosts) == 1 else None, "log.raft: message_timeout_ms")


def retry_max_s(policy: RetryPolicy, outage_s: float) -> float:
    """The longest pause that a client may be in when an outage of this length ends.

    Each pause is the first one plus `backoff_base - 1` times the sum of all before it. These began with the outage.
    """
    grown_s = policy.timeout_s + (policy.backoff_base - 1) * outage_s
    return min(policy.delay_max_s, grown_s) * (1 + policy.jitter)


def _decider(setting: str) -> str:
    return setting if setting.startswith(("log.", "nothing")) else f"election: {setting}"


def _longest(steps: list[Step]) -> float:
    """The duration of the steps: the sum of the successive ones, or a parallel one if it is longer."""
    in_a_row = sum(step.worst_s or 0.0 for step in steps if not step.meanwhile)
    return max(in_a_row, *(step.worst_s or 0.0 for step in steps if step.meanwhile))
