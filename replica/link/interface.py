"""The interface between front ends and core: what a front end may ask, and what the core answers.

A front end uses a `CoreLink`. The core implements a `Handler` and answers through `Replies`. Tests run both sides in
one process (`replica.link.memory`). A replica has a Unix socket between its processes (`replica.link.unix_server`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Protocol

import msgspec

from replica.link.change_signal import ChangeSignal
from replica.notary.answers import Answer, CommitUnderstood, NotNow, StateStatus, TxUnderstood
from replica.notary.codes import Code
from replica.notary.genesis import NO_LEDGER
from replica.notary.requests import STATE_REF_BYTES, TX_ID_BYTES, DeduplicationS, Offset, Submission

LogAnswer = TxUnderstood | CommitUnderstood | NotNow
LookUpAnswer = Answer | StateStatus | TxUnderstood | CommitUnderstood
Ticket = Offset
TicketedAnswer = tuple[Ticket, LookUpAnswer]
TicketedSubmission = tuple[Ticket, Submission]
TicketedLookUp = tuple[Ticket, Annotated[bytes, msgspec.Meta(min_length=TX_ID_BYTES, max_length=STATE_REF_BYTES)]]
"""What travels with its ticket, a number that the front end chose; a look-up names a transaction id or a state."""


class TxQuestion(msgspec.Struct, frozen=True, array_like=True, tag="tx"):
    """What became of the log's entry `view.seqno`?"""

    view: Offset
    seqno: Offset


class CommitQuestion(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """What is committed? With the views from `since_view` on, from 1; None: without views."""

    since_view: Offset | None = None


LogQuestion = TxQuestion | CommitQuestion


class Standing(msgspec.Struct, frozen=True):
    """The core's report on its role. A front end serves only while `active`. `epoch`: the newest that the core knows.

    `ledger_end` is the newest ledger offset whose completion is published, according to the active's own commits.
    Completions at `pruned_to` or below may be gone. Both are 0 while the replica is passive, because it does not know.
    `estimate_s`: the longest time that a request sent now would take. `retry_after_s`: when to look for another active.
    `all_serve`: this replica serves whoever leads; then `ledger_end` is what the database last showed, and may be lower
    after it was replaced by its standby. `paused`: it does not serve, because operators have paused service everywhere.
    `ledger_id`: what the genesis of the log names, zeros while the core has not read one.
    """

    active: bool
    epoch: int
    retry_after_s: float
    ledger_end: int = 0
    pruned_to: int = 0
    estimate_s: float = 0.0
    all_serve: bool = False
    paused: bool = False
    ledger_id: bytes = NO_LEDGER

    def as_passive(self) -> Standing:
        """The same, but not active: used when the core is silent."""
        return Standing(False, self.epoch, self.retry_after_s, paused=self.paused, ledger_id=self.ledger_id)


class PeerSeen(msgspec.Struct, frozen=True, array_like=True):
    """What the core last saw of another replica: its role then, and whether it still answers.

    `seen_us`: Unix time of its newest answer; None: it has not answered yet.
    """

    name: str
    active: bool
    epoch: Offset
    seen_us: Offset | None
    answers: bool


def serving(others: Sequence[PeerSeen]) -> int:
    """How many replicas serve, this one among them."""
    return 1 + sum(one.active and one.answers for one in others)


def refuse_as_passive(standing: Standing) -> NotNow:
    """The answer of a replica that is not active, to any question."""
    if standing.paused:
        return NotNow(Code.SERVICE_PAUSED.name, "operators have paused service", standing.retry_after_s)
    detail = f"this replica is passive; the newest epoch it knows of is {standing.epoch}"
    return NotNow(Code.NOT_ACTIVE.name, detail, standing.retry_after_s)


def refuse_as_overloaded(standing: Standing, detail: str) -> NotNow:
    """The answer of an active replica's overloaded front end. It estimates when the queue will be done."""
    return NotNow(Code.OVERLOADED.name, detail, max(standing.retry_after_s, standing.estimate_s))


class SubmitOptions(msgspec.Struct, frozen=True, array_like=True):
    """How submissions that come together are handled.

    An asynchronous submission is answered with Accepted as soon as it is recorded; its outcome is a completion. With
    `early` as well, it is answered with AcceptedEarly as soon as the log's leader has it, on log nodes of our own. An
    earlier acceptance of the same command counts within `deduplication_s`, or above the ledger offset
    `deduplication_after`. If both are None, the longest period that the notary allows.
    """

    asynchronous: bool = False
    deduplication_s: DeduplicationS | None = None
    deduplication_after: Offset | None = None
    early: bool = False


DEFAULT_OPTIONS = SubmitOptions()


class CoreLink(Protocol):
    """The core as a front end sees it."""

    @property
    def standing(self) -> Standing:
        """The newest report of the core; passive when the core is silent."""

    @property
    def standing_changes(self) -> ChangeSignal:
        """Notified whenever `standing` has changed."""

    @property
    def peers(self) -> Sequence[PeerSeen]:
        """What the core last saw of the other replicas; empty where it does not look. None answers a silent core."""

    @property
    def is_silent(self) -> bool:
        """Whether the core has not been heard for so long that it counts as passive: frozen, or about to end."""

    async def submit(
        self,
        submissions: Sequence[Submission],
        options: SubmitOptions = DEFAULT_OPTIONS,
        on_wait: Callable[[float], None] | None = None,
    ) -> list[Answer]:
        """Notarise checked submissions; one answer each, in order. Never raises: an unknown outcome is a NotNow.

        `on_wait` gets each new estimate of how many seconds the answers may take. The answers still come.
        """

    async def look_up(self, tx_id: bytes) -> Answer:
        """Whether a transaction was notarised: Notarised, Refused with TX_NOT_FOUND, or NotNow."""

    async def look_up_state(self, state: bytes) -> StateStatus | NotNow:
        """Which transaction consumed a state, if any did."""

    async def ask_log(self, question: LogQuestion) -> LogAnswer:
        """What the log node beside the replica knows. A passive replica's node answers as well."""


class Replies(Protocol):
    """Where the answers for one front end go. Hashable, so that the core can group a batch of answers by it."""

    def send(self, answers: Sequence[TicketedAnswer]) -> None:
        """Hand over answers at once: call it once per front end and answered batch.

        Never waits and never raises; answers for a front end that is gone are dropped.
        """

    def wait(self, tickets: Sequence[int], wait_s: float) -> None:
        """The answers to these tickets may take `wait_s`, and still come. Otherwise as `send`."""


class Handler(Protocol):
    """The core as the link sees it. Called on the core's event loop; every method returns at once and never raises.

    Each ticket gets exactly one answer through `replies`, at any time and in any order; a NotNow counts as an answer.
    The front end has already checked the input: canonical bytes, ids, signature.
    """

    def standing(self) -> Standing:
        """The role at this moment; asked before each report to the front ends."""

    def submit(
        self, replies: Replies, batch: list[TicketedSubmission], options: SubmitOptions = DEFAULT_OPTIONS
    ) -> None:
        """Take submissions that came together, in the order in which they are to be logged.

        A front end may not know yet that this replica is passive: the handler checks by itself.
        """

    def look_up(self, replies: Replies, batch: list[TicketedLookUp]) -> None:
        """Take look-ups that came together: of transactions (32 bytes) and of states (36 bytes)."""

    def ask_log(self, replies: Replies, ticket: int, question: LogQuestion) -> None:
        """Take a question to the log's own nodes."""
