"""Logs that lose their tail, and what survives of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.archive.salvage import IndexTail, Survivors, merge
from replica.active.publisher import completions_of
from replica.following.apply import Applier
from replica.index.compare import recorded_at
from replica.index.memory import MemoryIndex
from replica.notary.position import Position, begin
from replica.notary.salvage import (
    LostEntry,
    Salvage,
    SalvageHeader,
    Salvages,
    decode_salvage,
    encode_salvage,
)
from replica.store.interface import Completion
from tests.worlds.archive_world import SIGNER
from tests.worlds.notary_logs import TOPIC, Log, begun, request_of

RESTORED = "topic-that-was-restored"


def tail_of(name: str, log: Log, archived: int) -> IndexTail:
    """What the index of a replica that applied this log recorded behind the first `archived` records."""
    index = MemoryIndex()
    position = Applier(index, TOPIC).apply(log).position if log else begin(TOPIC)
    return IndexTail(name, position, {key: value for key, value in index.entries() if recorded_at(value) >= archived})


def completions_in(log: Log, archived: int, published: int) -> list[Completion]:
    """The completions of the records from `archived` on, up to and with offset `published`."""
    applied = Applier(MemoryIndex(), TOPIC).apply(log)
    return [one for _, one in completions_of(applied) if archived <= one.log_offset <= published]


@dataclass
class LostTail:
    """A log of which the first `archived` records are in the archive; its indexes are applied to the offsets given."""

    log: Log
    archived: int
    applied: Sequence[int]
    published: int
    complete_from: int | None = None
    ledger_end: int | None = None

    @property
    def base(self) -> Position:
        return Applier(MemoryIndex(), TOPIC).apply(self.log[: self.archived]).position

    def survivors(self) -> Survivors:
        return Survivors(
            archive_id="archive-1",
            base=self.base,
            indexes=[tail_of(f"r{n}", self.log[: at + 1], self.archived) for n, at in enumerate(self.applied, 1)],
            published=self.published,
            completions=completions_in(self.log, self.archived, self.published),
            complete_from=self.archived if self.complete_from is None else self.complete_from,
            ledger_end=len(completions_in(self.log, 0, self.published)) if self.ledger_end is None else self.ledger_end,
        )

    def merged(self) -> tuple[SalvageHeader, list[LostEntry]]:
        return merge(self.survivors(), at_us=7, public_key=SIGNER.public_key)

    def raw(self) -> bytes:
        return encode_salvage(*self.merged(), SIGNER.sign)

    def salvage(self) -> Salvage:
        return decode_salvage(self.raw(), SIGNER.public_key)


def restored(tail: LostTail, salvage: Salvage, suffix: Sequence[bytes] = ()) -> Log:
    """The records of the restored topic: the archive's, lost ones, and what was written since."""
    lost = [salvage.lost_record(offset) for offset in range(salvage.first, salvage.last + 1)]
    return list(enumerate([value for _, value in tail.log[: tail.archived]] + lost + list(suffix)))


def read(log: Log, salvages: Salvages, run: int = 1_000) -> MemoryIndex:
    """The index of a replica that reads a restored log, so many records at a time."""
    index = MemoryIndex()
    applier = Applier(index, RESTORED, salvages)
    for start in range(0, len(log), run):
        applier.apply(log[start : start + run])
    return index


def some_tail(**changes: object) -> LostTail:
    """Seven requests behind what a log begins with; the first one archived, all applied by one replica, published but
    for the last two.

    Offset 7 repeats the transaction of 6, and 8 is refused, because 5 spent its state.
    """
    maker = begun()
    for number in range(3, 7):
        maker.submit(request_of(number, (2 * number, 2 * number + 1)))
    maker.submit(request_of(6, (12, 13)))
    maker.submit(request_of(8, (10,)))
    maker.submit(request_of(9, (18,), (19,)))
    values: dict[str, object] = {"log": maker.log, "archived": 4, "applied": (9,), "published": 7}
    return LostTail(**(values | changes))  # type: ignore[arg-type]
