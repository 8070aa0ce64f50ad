"""What clients of replicas that all serve noticed of a fault, from the histories that they wrote: pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import ceil

from replica.checker.history import Event, Invoke, Unknown

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of a client. `submission` is the same for every attempt of one submission, and for nothing else."""

    submission: str
    began_ns: int
    ended_ns: int
    answered: bool  # False: an interim refusal, a time-out, a lost connection

    @property
    def took_s(self) -> float:
        """From the call to its end."""
        return (self.ended_ns - self.began_ns) / NS_PER_S


def calls(events: Iterable[Event]) -> Iterator[Call]:
    """The submissions among the calls of a history, look-ups left out, in the order of their ends."""
    begun: dict[tuple[str, int], Invoke] = {}
    for event in events:
        key = (event.process, event.op)
        if isinstance(event, Invoke):
            begun[key] = event
        elif (invoke := begun.pop(key)).command is not None:
            command = invoke.command
            submission = f"{invoke.process} {command.command_id} {command.submission_id} {invoke.tx_id}"
            yield Call(submission, invoke.at_ns, event.at_ns, not isinstance(event, Unknown))


def between(found: Iterable[Call], from_ns: int, until_ns: int) -> list[Call]:
    """The calls that were under way at some moment of this time."""
    return [call for call in found if call.ended_ns >= from_ns and call.began_ns <= until_ns]


def within(found: Iterable[Call], from_ns: int, until_ns: int) -> list[Call]:
    """The calls that began and ended in this time."""
    return [call for call in found if call.began_ns >= from_ns and call.ended_ns <= until_ns]


def unanswered(found: Iterable[Call]) -> int:
    """Calls without a definite answer."""
    return sum(not call.answered for call in found)


def longest_s(found: Iterable[Call]) -> float:
    """The longest time in which one of these clients, each with one call at a time, had no answer."""
    return max((call.took_s for call in found), default=0.0)


def quantile_s(found: Iterable[Call], share: float) -> float:
    """The time that this share of the calls did not exceed. Raises ValueError without a call."""
    took_s = sorted(call.took_s for call in found)
    if not took_s:
        raise ValueError("there is no call")
    return took_s[max(0, ceil(share * len(took_s)) - 1)]


def whole(found: Iterable[Call]) -> list[Call]:
    """From each submission's first attempt to its answer, as one call; those without an answer are not answered."""
    merged: dict[str, Call] = {}
    for call in sorted(found, key=lambda call: call.ended_ns):
        before = merged.get(call.submission, call)
        merged[call.submission] = replace(call, began_ns=min(before.began_ns, call.began_ns))
    return list(merged.values())


def back_after_s(submissions: Iterable[Call], fault_ns: int, until_ns: int) -> float:
    """How long after a fault the unluckiest of the whole submissions around it had its answer, or how long it took if
    it began later.

    Raises ValueError where one of them has no answer at all.
    """
    around = between(submissions, fault_ns, until_ns)
    if unanswered(around):
        raise ValueError(f"{unanswered(around)} submissions have no answer")
    return max((call.ended_ns - max(call.began_ns, fault_ns) for call in around), default=0) / NS_PER_S
