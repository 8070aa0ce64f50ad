"""Whether the lease over a log is free: the decision of a replica that waits for it. Pure; imports no I/O.

The log has no clock while nobody writes, so each waiting replica counts the holder's silence by its own boot time. A
stretch of time counts only if a question at its end shows that the log works and that everything before the question
was read: an append that came back, or an end that a majority confirmed. A log that was away, a reader that lags and a
process that was suspended therefore count next to nothing.

A log whose servers know when its newest record came says so with its end. That counts as well, as long as nothing was
read beyond that end: the holder sent its newest record before. So the election of a leader of the log, which keeps the
holder's last records from readers, is no time lost.

Counting decides only when to claim. What makes a claim safe is its witness: readers void a claim whose holder has a
record after the one that it names. So no two replicas claim to lead at one time: the holder leads until `lease_s -
margin_s` after it sent its newest record that counts, and the claim comes into force at least `lease_s` after that.

Nobody counts where the holder's process is proven to have ended. Log nodes on its machine see that in milliseconds
(`replica/log/raft/lives.py`). The proof names one activation, and holds for ever: whoever has it may claim at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ha.lock.interface import ReleaseNote
from ha.settings import ElectionSettings

UNASKED_HEARTBEATS = 1.5  # so long a silence is usual, and not asked about
_ROUNDING_S = 1e-6  # of sums of boot times
UNCONFIRMED_HEARTBEATS = 2.0  # with a poll on top, the longest stretch that one question confirms


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The lease as the log shows it, as far as it was read.

    `holder`: the replica in whose name the newest activation was opened; None if there is none, or if it was released.
    `released`: how it was given up in order. `witnessed`: log offset of the holder's newest record that counts.
    """

    log_id: str
    epoch: int
    activation_id: bytes
    holder: str | None
    released: ReleaseNote | None
    witnessed: int
    holder_ended: bool = False  # the process of the holder is proven to have ended
    quiet_s: float = 0.0  # for so long at least the log's servers had no record after those that were read


@dataclass(frozen=True, slots=True)
class Silence:
    """How long the holder has been silent, as far as that is known. Boot time in seconds.

    Time up to `counted_to_s` has been judged; `silent_s` of it counts.
    """

    epoch: int
    witnessed: int
    counted_to_s: float
    silent_s: float = 0.0


def heard(silence: Silence | None, view: LeaseView, now_s: float) -> Silence:
    """Count from now on if the holder changed or wrote; go on counting otherwise. What the log's servers know of the
    silence counts where it is more."""
    if silence is None or (silence.epoch, silence.witnessed) != (view.epoch, view.witnessed):
        return Silence(view.epoch, view.witnessed, now_s, view.quiet_s)
    return silence if silence.silent_s >= view.quiet_s else replace(silence, counted_to_s=now_s, silent_s=view.quiet_s)


def confirmed(silence: Silence, asked_at_s: float, settings: ElectionSettings) -> Silence:
    """The log has answered a question of that moment, and nothing of the holder came before the answer."""
    stretch_s = max(0.0, asked_at_s - silence.counted_to_s)
    counts_s = min(stretch_s, UNCONFIRMED_HEARTBEATS * settings.heartbeat_s + settings.poll_max_s)
    return replace(silence, counted_to_s=silence.counted_to_s + stretch_s, silent_s=silence.silent_s + counts_s)


def question_at_s(silence: Silence, settings: ElectionSettings) -> float:
    """When to ask the log next: after a heartbeat is missing, then at each heartbeat, and when the lease is over."""
    pause_s = settings.heartbeat_s * (1.0 if silence.silent_s else UNASKED_HEARTBEATS)
    return silence.counted_to_s + min(pause_s, settings.lease_s - silence.silent_s)


def is_free(view: LeaseView, silence: Silence, settings: ElectionSettings) -> bool:
    """Whether the lease may be claimed: nobody holds it, its holder has ended, or was silent for its whole length."""
    return view.holder is None or view.holder_ended or silence.silent_s >= settings.lease_s - _ROUNDING_S
