"""Which replicas' processes have ended, as one log node has seen it. Pure.

A replica that claims the lease ties its process to the claim: it opens a connection that it closes only once it leads
no more, its *lifeline*. The kernel closes it when the process ends, however it ends. So a lifeline that was closed from
the other side shows that this activation is led by nobody. A node sees that in milliseconds.

It is a proof on one machine only. From another machine, a device between the two may end a connection of a process
that lives. Nor does a connection show anything that this node ended itself, or that a timeout of its own ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from replica.log.raft.wire import Watch, Watched

ENDED_MAX = 1_000  # activations that are remembered as ended; a waiting replica asks about the newest
WATCHING_MAX = 256  # calls that wait; further ones are answered at once
_Reply = Callable[[Watched], None]


def has_closed(error: BaseException | None, *, ended_here: bool) -> bool:
    """Whether the other side's kernel closed a connection; `error`: what it was lost by."""
    return not ended_here and (error is None or isinstance(error, ConnectionResetError | BrokenPipeError))


def is_same_machine(own: object, others: object) -> bool:
    """Whether a connection between these socket addresses stays on one machine: both ends have one IP address."""
    return isinstance(own, tuple) and isinstance(others, tuple) and bool(own[0]) and own[0] == others[0]


class Lives:
    """The activations whose process has ended, and the calls that wait for that."""

    def __init__(self) -> None:
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        self._watching: list[tuple[Watch, _Reply, float]] = []

    def ended(self, activation_id: bytes) -> None:
        """Its lifeline was closed by the other side."""
        self._ended[activation_id] = None
        while len(self._ended) > ENDED_MAX:
            self._ended.popitem(last=False)
        watching, self._watching = self._watching, []
        for call, reply, until_s in watching:
            if call.activation_id == activation_id:
                reply(Watched(call.call, ended=True))
            else:
                self._watching.append((call, reply, until_s))

    def watch(self, call: Watch, reply: _Reply, now_s: float) -> None:
        """Answer once that process has ended, or at the end of the time that the caller waits."""
        ended = call.activation_id in self._ended
        if ended or not call.wait_ms or len(self._watching) >= WATCHING_MAX:
            reply(Watched(call.call, ended=ended))
        else:
            self._watching.append((call, reply, now_s + call.wait_ms / 1_000))

    def tick(self, now_s: float) -> None:
        """Answer those that have waited long enough."""
        if not any(until_s <= now_s for _, _, until_s in self._watching):
            return
        watching, self._watching = self._watching, []
        for call, reply, until_s in watching:
            if until_s <= now_s:
                reply(Watched(call.call, ended=False))
            else:
                self._watching.append((call, reply, until_s))
