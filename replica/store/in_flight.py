"""The active's record of its commands in flight. Pure: queried before a statement, updated after it.

An activation begins with none. From then on each command is added and removed through the store, because only the
active writes. The rows in the database are for the next activation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from replica.notary.answers import Earlier
from replica.store.interface import AdmissionResult, Admitted, Command, Completion, is_for_the_log


class Known(msgspec.Struct, frozen=True, gc=False):
    """A known command: its transaction, and where that was notarised; None while it is in flight.

    `submission_id` is empty if it is not known.
    """

    tx_id: bytes
    content_digest: bytes
    notarised_offset: int | None = None
    submission_id: str = ""
    admission: int = 0  # the number of the admission that recorded it
    ledger_offset: int | None = None  # of its completion


class InFlight:
    """The commands in flight, by change id."""

    def __init__(self) -> None:
        self._known: dict[bytes, Known] = {}

    def fresh(self, commands: Iterable[Command]) -> dict[bytes, Command]:
        """The commands that are not in flight, the first of each change id."""
        fresh: dict[bytes, Command] = {}
        for command in commands:
            if command.change_id not in self._known:
                fresh.setdefault(command.change_id, command)
        return fresh

    def add(self, commands: Collection[Command], admission: int = 0) -> None:
        """The commands were recorded as pending."""
        for command in commands:
            self._known[command.change_id] = Known(
                command.tx_id, command.content_digest, None, command.submission_id, admission
            )

    def outcomes(
        self, commands: Sequence[Command], fresh: dict[bytes, Command], accepted: Mapping[bytes, Known]
    ) -> list[AdmissionResult]:
        """The deduplication result of each. `fresh`: recorded just now (emptied here). `accepted`: known before."""
        if len(fresh) == len(commands):  # nearly always
            return [_FRESH] * len(commands)
        return [
            _FRESH
            if fresh.pop(command.change_id, None)  # only the first one of this call
            else _compare(command, accepted.get(command.change_id) or self._known[command.change_id])
            for command in commands
        ]

    def landing(self, completions: Iterable[Completion]) -> dict[bytes, Known]:
        """The commands in flight that these completions settle."""
        landing = {}
        for completion in completions:
            known = self._known.get(completion.change_id)
            if known is not None and known.submission_id == completion.submission_id:
                landing[completion.change_id] = known
        return landing

    def remove(self, change_ids: Iterable[bytes]) -> None:
        """The completions of these commands are published."""
        for change_id in change_ids:
            del self._known[change_id]


_FRESH = AdmissionResult(Admitted.FRESH)


def _compare(command: Command, known: Known) -> AdmissionResult:
    earlier = Earlier(known.submission_id or None, known.ledger_offset)
    if (known.tx_id, known.content_digest) != (command.tx_id, command.content_digest):
        waits = known.notarised_offset is None and is_for_the_log(command, known.tx_id, known.content_digest)
        return AdmissionResult(Admitted.IN_FLIGHT if waits else Admitted.REUSED, None, earlier)
    if known.notarised_offset is None:
        return AdmissionResult(Admitted.IN_FLIGHT, None, earlier)
    return AdmissionResult(Admitted.ACCEPTED, known.notarised_offset, earlier)
