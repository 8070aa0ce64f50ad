"""The participant store: what the replicas share in the database. Only the active writes it, on its lock session.

The log past the published position can restore all of it, except commands that are accepted but not in the log. The
next activation settles those.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from enum import Enum
from typing import Protocol

import msgspec

from replica.notary.answers import Earlier
from replica.notary.formats import Formats
from replica.notary.outcomes import NOTARISED as NOTARISED  # noqa: PLC0414  (a completion's outcome)
from replica.notary.position import Position
from replica.notary.rules import DEDUPLICATING_FROM


class Command(msgspec.Struct, frozen=True, gc=False):
    """A submission about to be logged: one row of command deduplication. Times are microseconds UTC."""

    change_id: bytes
    user_id: str
    command_id: str
    act_as: tuple[str, ...]
    submission_id: str
    tx_id: bytes
    content_digest: bytes
    submitted_us: int


class Admitted(Enum):
    """The result of deduplication for a command."""

    FRESH = "fresh"  # recorded as pending; log it
    IN_FLIGHT = "in_flight"  # the same transaction is pending under this command; not logged again
    ACCEPTED = "accepted"  # the same transaction was accepted under this command
    REUSED = "reused"  # the command belongs to another transaction id or content


class AdmissionResult(msgspec.Struct, frozen=True):
    """The outcome for one command; `notarised_offset` is set for ACCEPTED, `earlier` for all but FRESH."""

    outcome: Admitted
    notarised_offset: int | None = None
    earlier: Earlier | None = None


def is_for_the_log(command: Command, tx_id: bytes, content_digest: bytes) -> bool:
    """Whether a command skips deduplication, because it conflicts only with another content of its own transaction id.

    A command without an id chosen by the caller is named after its transaction. In a conflict then no command id was
    used twice, but a transaction id. The log must judge that: TX_ID_REUSED, if the other content was notarised.
    """
    return (
        tx_id == command.tx_id
        and content_digest != command.content_digest
        and command.command_id == command.tx_id.hex()
    )


OfEach = int | Sequence[int]
"""A number of all commands of a call, or a list with the number of each."""


class Reach:
    """Which acceptances count for the commands of one call. A statement asks with the loosest bounds; then each command
    is judged by its own bounds. So one statement serves all, whatever periods their senders choose."""

    def __init__(self, commands: Sequence[Command], since_us: OfEach, after: OfEach) -> None:
        """`since_us` in microseconds UTC, `after` a ledger offset: see ParticipantStore.admit."""
        self._commands = commands
        self._since_us = since_us
        self._after = after
        self._bounds: dict[bytes, tuple[int, int]] = {}
        self.since_us = since_us if isinstance(since_us, int) else min(since_us, default=0)
        self.after = after if isinstance(after, int) else min(after, default=0)

    def covers(self, change_id: bytes, accepted_us: int, ledger_offset: int) -> bool:
        """Whether that acceptance of that command counts."""
        if not self._bounds:  # seldom needed: most commands are new
            count = len(self._commands)
            since_us = [self._since_us] * count if isinstance(self._since_us, int) else self._since_us
            after = [self._after] * count if isinstance(self._after, int) else self._after
            bounds = zip(since_us, after, strict=True)
            self._bounds = {one.change_id: its for one, its in zip(self._commands, bounds, strict=True)}
        least_us, above = self._bounds[change_id]
        return accepted_us >= least_us and ledger_offset > above


class Completion(msgspec.Struct, frozen=True, gc=False):
    """The result of one attempt, before it gets its ledger offset.

    `outcome` is a name of the error catalogue, or NOTARISED. `log_offset` is the record that the completion comes from
    (a settlement yields several). `detail` holds a conflict's states in MessagePack, and is empty otherwise. The
    deduplication period that was applied is a number of microseconds, or a ledger offset after which acceptances count;
    both are None where it is not known.
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
    recorded_us: int  # the time it was judged at, microseconds UTC; for a settlement the highest stamp before it
    detail: bytes = b""
    deduplication_us: int | None = None
    deduplication_after: int | None = None


class Published(msgspec.Struct, frozen=True):
    """How far completions are published: the log position after them (None at first) and the last ledger offset.

    Completions up to `pruned_to` may be gone, together with their deduplication data. All completions recorded later
    than `pruned_us` (microseconds UTC) are after it.
    """

    position: Position | None
    ledger_end: int
    pruned_to: int = 0
    pruned_us: int = 0


def published_of(position: Position | None, ledger_end: int, pruned_to: int, pruned_us: int | None) -> Published:
    """Build it from the columns of a database. A time that is not known is at most that of the published position."""
    if pruned_us is None:
        pruned_us = 0 if position is None else position.stamp_us
    return Published(position, ledger_end, pruned_to, pruned_us)


def is_remembered(completion: Completion, position: Position) -> bool:
    """Whether the database must find the command again: it was accepted under rules that leave that to the database.

    `position`: after the run. What is above the barrier in force was judged by its rules.
    """
    barrier = position.barrier
    by_log = barrier is not None and barrier.rules_version >= DEDUPLICATING_FROM
    return completion.outcome == NOTARISED and not (by_log and completion.log_offset > position.barrier_offset)


class Pruned(msgspec.Struct, frozen=True):
    """The ledger offset up to which completions may be gone now, and the highest one that would be safe."""

    pruned_to: int
    safe_to: int


class ParticipantStore(Protocol):
    """Every method is one round trip on the lock session. `admit` takes two when some command is known. `pending`, and
    a `publish` before it, take some more after a restore, so that no statement takes longer for an older backup.

    An error of a lost session passes through: then the outcome is unknown and the session is over. The order on a
    session is: `bind`; `raise_epoch`; `published` and `publish`; `pending` until it returns nothing; then `admit` and
    `publish`. StoreUnavailable: the server accepts no writes, and nothing was written.
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

    async def admit(
        self, commands: Sequence[Command], accepted_since_us: OfEach, accepted_after: OfEach = 0
    ) -> list[AdmissionResult]:
        """Record commands as pending unless they are known, in one transaction; outcomes in the order given.

        These count as unknown: rejected commands, those accepted before `accepted_since_us`, and those accepted at a
        ledger offset not after `accepted_after`. Each bound is one value for all, or a list with one value per command,
        equal for all commands of one change id. Commands accepted at or before `pruned_to` may count as unknown, too.

        If two commands of one call have one change id, the second is in flight, or REUSED if it is for another
        transaction. Where `is_for_the_log`, the command is FRESH, or in flight.

        Raises InvariantBroken unless `pending` has returned nothing before: commands of earlier activations are settled
        first. Raises ValuesRefused when a command has a value that the database does not take: then none was recorded.
        """

    async def publish(self, completions: Sequence[Completion], position: Position) -> int:
        """Publish completions in one transaction: add them in the order given with dense ledger offsets, settle their
        commands, and move the published position. Returns the ledger end.

        Raises InvariantBroken unless the position moves forward, and the database is where this session last found or
        left it. A command is settled by the completion of the submission that is in flight. An accepted command stays
        accepted, whatever the result of its other submissions.
        """

    async def prune(self, up_to: int | None, recorded_before_us: int) -> Pruned:
        """Move the bound up to which completions may be deleted to `up_to`; None: to the newest safe bound.

        A completion may be deleted if it was recorded before `recorded_before_us` (microseconds UTC), and comes before
        every completion that is needed to find the commands in flight. A bound that is not safe, or lower than the
        present one, changes nothing.
        """

    async def log_offset_of(self, ledger_offset: int) -> int | None:
        """The log offset of a published completion; None if it is pruned."""

    async def pending(self, limit: int) -> list[Command]:
        """Commands that are accepted and have no completion yet, oldest first."""
