"""Settings of the replicated log, and the length of an outage when a leader dies.

The leader sends to all peers every `message_timeout_ms`. A follower stands for election if it hears nothing for a time
drawn between half and all of `election_timeout_ms`. A leader steps down if no majority answers for
`election_timeout_ms`. An unnecessary election therefore needs several lost or late messages in a row:

1. `message_timeout_ms <= election_timeout_ms / 2 / 3`: three in a row, within the shortest wait.
2. `tick_ms <= message_timeout_ms`: the node checks its clock at least as often as it has something to send.

Safety rests on views, signatures and quorums. These figures only decide how soon a node leads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ha.errors import SettingsError
from ha.settings import Rule

MESSAGES_PER_WAIT_MIN = 3


class RaftSettingsError(SettingsError):
    """The settings of the replicated log contradict each other."""

    remedy: ClassVar[str] = "Change the setting that is named; docs/settings.md has those of [log.raft]."


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftSettings:
    """One node's settings; the two timeouts have CCF's names and meaning. What CCF does not do is off by default."""

    message_timeout_ms: int = 50
    election_timeout_ms: int = 600
    tick_ms: int = 10  # how often the driver calls `tick`
    append_limit_bytes: int = 20_000  # approximate size of the entries in one message
    batch_entries_first: int = 20
    batch_entries_min: int = 1
    batch_is_fixed: bool = False
    unacknowledged_max: int = 0  # entries sent to one node that it has not acknowledged; 0: no bound, as in CCF
    resends: bool = False  # after a refusal, send at once from where the logs may agree, not with the next message
    probes: bool = False  # the same, but one message at a time until one is accepted
    pre_vote: bool = True  # ask whether an election can be won before a view is used for it
    durable: bool = False  # this node returns with its log, view and vote; a leader counts only what it has synced
    sticky_voters: bool = False  # no pre-vote while a leader was heard lately
    strangers_wait: bool = False  # a node of no known configuration raises no view while a leader was heard lately
    joiners_catch_up: bool = False  # a new member must have the log before it can be added
    ordered_links: bool = False  # a node's messages arrive in order, at most once: shows a disk that was set back
    core_silence_ms: int = 0  # a leader whose core is silent for so long nominates another node; 0: never
    ids_once: bool = False  # a node that left for good cannot be added again

    def __post_init__(self) -> None:
        for rule in self.rules():
            if not rule.holds:
                raise RaftSettingsError(f"{rule.name} is {rule.value:g}, more than {rule.limit_name} = {rule.limit:g}")
        if min(self.message_timeout_ms, self.tick_ms, self.append_limit_bytes, self.batch_entries_first) <= 0:
            raise RaftSettingsError("a timeout, tick or size is not above 0")

    def rules(self) -> tuple[Rule, ...]:
        """The rules of the module's docstring with these settings' figures, in its order."""
        return (
            Rule(
                "message_timeout_ms",
                self.message_timeout_ms,
                "election_timeout_ms / 6",
                self.election_timeout_ms / 2 / MESSAGES_PER_WAIT_MIN,
                "a few lost or late messages do not make an election",
            ),
            Rule("tick_ms", self.tick_ms, "message_timeout_ms", self.message_timeout_ms, "messages go out in time"),
        )

    @property
    def sticky_ms(self) -> int:
        """A voter keeps a leader heard within this time: the shortest wait for an election, less one message."""
        return self.election_timeout_ms // 2 - self.message_timeout_ms

    def outage_ms(self, round_trip_ms: int) -> tuple[int, int]:
        """Typical and worst time from a leader's death until another has committed, if no vote is split.

        Typical: two followers are left, and the earlier of two uniform draws ends a third into the range. Pre-vote,
        vote and the first signature follow, a round trip each. Each draw ends up to one tick late.
        """
        least = self.election_timeout_ms // 2
        rounds = 2 + self.pre_vote
        return least + least // 3 + rounds * round_trip_ms, 2 * least + self.tick_ms + rounds * round_trip_ms
