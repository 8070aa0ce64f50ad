"""The participant store: what the replicas share in the database. Only the active writes it, on its lock session.

The log past the published position can restore all of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import msgspec

from replica.notary.formats import Formats
from replica.notary.marks import ContradictedMark
from replica.notary.outcomes import NOTARISED as NOTARISED  # noqa: PLC0414  (a completion's outcome)
from replica.notary.position import Position


class Command(msgspec.Struct, frozen=True, gc=False):
    """A submission about to be logged. Times are microseconds UTC."""

    change_id: bytes
    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    submission_id: str
    tx_id: bytes
    content_digest: bytes
    submitted_us: int


class Completion(msgspec.Struct, frozen=True, gc=False):
    """The result of one attempt, without its ledger offset.

    `outcome` is a name of the error catalogue, or NOTARISED. `log_offset` is the record that the completion comes
    from. `detail` holds a conflict's states in MessagePack, and is empty otherwise. The deduplication period that was
    applied is a number of microseconds, or a ledger offset after which acceptances count.
    """

    log_offset: int
    change_id: bytes
    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    submission_id: str
    tx_id: bytes
    content_digest: bytes
    outcome: str
    notarised_offset: int | None
    recorded_us: int  # the time it was judged at, microseconds UTC
    detail: bytes = b""
    deduplication_us: int | None = None
    deduplication_after: int | None = None


Row = tuple[int, Completion]
"""A completion with its ledger offset."""


class Published(msgspec.Struct, frozen=True):
    """How far completions are published: the log position after them (None at first) and the last ledger offset.

    Completions up to `pruned_to` may be gone.
    """

    position: Position | None
    ledger_end: int
    pruned_to: int = 0


class Pruned(msgspec.Struct, frozen=True):
    """The ledger offset up to which completions may be gone now, and the highest one that would be safe."""

    pruned_to: int
    safe_to: int


class ParticipantStore(Protocol):
    """Every method is one round trip on the lock session.

    An error of a lost session passes through: then the outcome is unknown and the session is over. The order on a
    session is: `bind`; `raise_epoch`; `published`; `publish`. StoreUnavailable: the server accepts no writes, and
    nothing was written.
    """

    async def bind(self, topic_id: str, salvages: Collection[str] = ()) -> Formats:
        """Prepare the session, and record the log's identity the first time. Later calls refuse any other log.

        `salvages`: digests of those that the index has. They must include all that the database names.

        Returns what operators have raised: the formats that the activation writes, unless the log has newer ones.
        Raises StoreMismatch, also when the database has no schema of this release.
        """

    async def raise_epoch(self, above: int, replica: str) -> int:
        """Take the next epoch, above `above` and above every epoch granted before. It is durable on return.

        Also marks earlier epochs without a recorded end as ended, found so by this replica.
        """

    async def service_paused(self) -> bool:
        """Whether operators have paused service, so that the next barrier must be one that nobody may use. To be asked
        once the epoch is raised: whatever was written before that is seen."""

    async def end_epoch(self, epoch: int, replica: str, reason: str) -> None:
        """Record the holder's reason for the end of its activation. Only the first reason counts."""

    async def published(self) -> Published:
        """The published position and the ledger end."""

    async def contradicted_marks(self) -> list[ContradictedMark]:
        """See ContradictedMarks: what replicas have left that ended."""

    async def publish(self, completions: Sequence[Row], position: Position) -> int:
        """Publish completions, in ascending order, in one transaction, and move the published position, which has the
        ledger end. Returns up to which ledger offset completions may be gone: at least that before the last gap. The
        completions there were lost with the log, and readers rely on there being none.

        Raises InvariantBroken unless position and completions go on from where the database is, and that is where this
        session last found or left it.
        """

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """Move the bound up to which completions may be deleted to `up_to`; None: to the newest safe bound.

        A completion may be deleted if it was recorded before `recorded_before_us` (microseconds UTC). A bound that is
        not safe, or lower than the present one, changes nothing.
        """
