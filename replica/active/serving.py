"""Who takes submissions: the holder of the lock alone, or every replica (worker.py). The setting `serving` chooses,
once, in the composition root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from ha.ending import Ending
from replica.active.activation import Activation
from replica.active.fitness import Unfit
from replica.active.look_ups import Confirming
from replica.active.parts import Parts
from replica.active.server import Server
from replica.following.apply import Applied
from replica.link.interface import PeerSeen
from replica.notary.position import BEGIN


class Leadership(Protocol):
    """The election as far as its service needs it."""

    def is_leading(self) -> bool:
        """Whether this replica leads, at this moment."""

    def step_down(self, ending: Ending) -> None:
        """Ask to step down, so that another replica leads."""


class Serving(Protocol):
    """What begins and ends the server of this replica. `all_serve`: whoever leads. `gather_s`: how long the follower
    gathers records, so that a run under load has many, seconds."""

    all_serve: bool
    gather_s: float

    async def run(self) -> None:
        """Serve while it may, until cancelled."""

    def take(self, applied: Applied) -> None:
        """A run that the follower applied, before the activation gets it. Raises InvariantBroken."""

    def note_unsigned(self, ending: Ending) -> None:
        """No receipt can be signed: stop serving. Another replica's key may work."""

    def note_peers(self, others: Sequence[PeerSeen]) -> None:
        """How the other replicas were seen last."""

    @property
    def server(self) -> Server | None:
        """What takes submissions and answers them."""

    @property
    def is_serving(self) -> bool:
        """Whether it takes submissions at this moment."""

    @property
    def confirming(self) -> Confirming | None:
        """What a look-up asks before it is answered."""

    @property
    def unfit(self) -> tuple[Unfit, str] | None:
        """Why it may not serve although the log and this replica might; None: it may, or does not lead."""

    @property
    def is_connected(self) -> bool:
        """Whether its own writer has a connection to the log, if it has one."""

    @property
    def ledger_end(self) -> int:
        """The newest ledger offset whose completion is published, as far as is known."""

    @property
    def pruned_to(self) -> int:
        """The ledger offset up to which completions may be gone, likewise."""

    @property
    def published_offset(self) -> int:
        """The log offset up to which completions were seen to be published, but for the activation's own."""


class HolderServes:
    """The holder of the lock alone: its activation has the server."""

    all_serve = False
    gather_s = 0.0
    unfit = None
    is_connected = True  # the activation's writer is the holder's
    published_offset = BEGIN

    def __init__(self, _: Parts, activation: Callable[[], Activation | None], election: Leadership) -> None:
        self._activation = activation
        self._election = election

    async def run(self) -> None:
        """Nothing: the election begins and ends activations."""

    def take(self, applied: Applied) -> None:
        """Nothing: the activation gets it."""

    def note_unsigned(self, ending: Ending) -> None:
        """Let another replica lead."""
        self._election.step_down(ending)

    def note_peers(self, others: Sequence[PeerSeen]) -> None:
        """Nothing: users share with nobody."""

    @property
    def server(self) -> Server | None:
        """See Serving."""
        activation = self._activation()
        return None if activation is None else activation.server

    @property
    def is_serving(self) -> bool:
        """See Serving."""
        activation = self._activation()
        return activation is not None and activation.serving and self._election.is_leading()

    @property
    def confirming(self) -> Confirming | None:
        """See Serving."""
        return self._activation()

    @property
    def ledger_end(self) -> int:
        """See Serving."""
        activation = self._activation()
        return 0 if activation is None else activation.publisher.ledger_end

    @property
    def pruned_to(self) -> int:
        """See Serving."""
        activation = self._activation()
        return 0 if activation is None else activation.publisher.pruned_to


MakeServing = Callable[[Parts, Callable[[], Activation | None], Leadership], Serving]
"""From the replica's parts, its activation at a moment, and its election."""
