"""What operators' words say where the replicas share no database, and under which names. Pure.

`pause`: fail-over is paused. `ended/N`: why an activation ended, in a ring of the newest epochs. `pruned`: up to where
each replica lets its completions go. `numbers`: how many ranges of sequence numbers replicas drew. `trail`: the newest
entry of the operators' trail; what it replaces is the one before, so the log has all of them. `formats`: what operators
have raised, for the next claim to the lease.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, TypeVar

import msgspec

from replica.notary.errors import StoreMismatch
from replica.notary.formats import Formats
from replica.notary.untrusted import UNREADABLE
from replica.notary.words import Word
from replica.store.bulletin import Pause

PAUSE = "pause"
ENDED = "ended/"
PRUNED = "pruned"
TRAIL = "trail"
NUMBERS = "numbers"
FORMATS = "formats"
ENDINGS_KEPT = 256
REASON_MAX_BYTES = 600  # JSON may write a byte as six, and a word has at most 4,096
_UNREADABLE = "of another release, or none of ours"
_UNKNOWN_MOMENT = datetime.fromtimestamp(0, UTC)
Said = TypeVar("Said", bound=msgspec.Struct)


class Ended(msgspec.Struct, frozen=True):
    """The holder's own reason why its activation ended."""

    epoch: int
    replica: str
    reason: str
    ended_at: datetime


class Bound(msgspec.Struct, frozen=True):
    """Completions up to this ledger offset may be gone."""

    pruned_to: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Draws(msgspec.Struct, frozen=True):
    """How many ranges of sequence numbers were drawn, and the mark of whoever drew the newest: two that draw at once
    would say the same, and both take the word in force for theirs."""

    drawn: Annotated[int, msgspec.Meta(ge=0, le=2**53)]
    by: str


def written(said: msgspec.Struct) -> bytes:
    """The value of a word."""
    return msgspec.json.encode(said)


def read(value: bytes, kind: type[Said]) -> Said | None:
    """What a value says; None for nothing. Raises StoreMismatch for what this release cannot read."""
    if not value:
        return None
    try:
        return msgspec.json.decode(value, type=kind)
    except UNREADABLE as error:
        raise StoreMismatch(f"a word in the log is {_UNREADABLE}: {error}") from None


def pause_in(value: bytes) -> Pause | None:
    """The pause that a value says. Whoever said what this release cannot read paused it: nobody leads by it."""
    try:
        return read(value, Pause)
    except StoreMismatch:
        return Pause("", f"the word {PAUSE} in the log is {_UNREADABLE}; notary resume ends it", _UNKNOWN_MOMENT)


def shortened(reason: str) -> str:
    """The reason as far as there is room for it."""
    return reason.encode(errors="replace")[:REASON_MAX_BYTES].decode(errors="ignore")


def paused(value: bytes, keeper: str, reason: str, now: datetime) -> bytes:
    """The pause that follows one that is in force, if any: to pause again changes the reason."""
    before = pause_in(value)
    if before is None or not before.keeper:
        before = Pause(keeper, reason, now)
    return written(msgspec.structs.replace(before, reason=shortened(reason)))


def slot_of(epoch: int) -> str:
    """The word that an epoch's end is said in."""
    return f"{ENDED}{epoch % ENDINGS_KEPT}"


def ended(value: bytes, end: Ended) -> bytes:
    """The end that follows one in the same place: the first of an epoch counts, and no older epoch's replaces it. One
    that this release cannot read is replaced, or the place would be lost."""
    before = _end_in(value)
    if before is not None and before.epoch >= end.epoch:
        return value
    return written(msgspec.structs.replace(end, reason=shortened(end.reason)))


def ends_in(words: Mapping[str, Word]) -> dict[int, Ended]:
    """The ends that words tell of, by epoch."""
    found = (_end_in(word.value) for word in words.values())
    return {end.epoch: end for end in found if end is not None}


def unreadable_in(words: Mapping[str, Word]) -> dict[str, str]:
    """The words among these ends that this release cannot read, each with what to say in its place."""
    return {
        name: f"not readable: the word {name} in the log is {_UNREADABLE}"
        for name, word in words.items()
        if word.value and _end_in(word.value) is None
    }


def _end_in(value: bytes) -> Ended | None:
    try:
        return read(value, Ended)
    except StoreMismatch:
        return None


def bound_in(value: bytes) -> int:
    """The bound of pruning that a value names; 0 for nothing."""
    found = read(value, Bound)
    return 0 if found is None else found.pruned_to


def raised(value: bytes, pruned_to: int) -> bytes:
    """The bound that follows one in force: it never falls."""
    return value if bound_in(value) >= pruned_to else written(Bound(pruned_to))


def formats_in(value: bytes) -> Formats:
    """What a value says was raised; the first formats for nothing. Raises StoreMismatch: nobody claims a lease by what
    it cannot read."""
    return read(value, Formats) or Formats()


def formats_raised(value: bytes, to: Formats) -> bytes:
    """The value after a raise: neither number ever falls. Raises StoreMismatch."""
    before = formats_in(value)
    after = before.raised(to)
    return value if after == before else written(after)


def draws_in(value: bytes) -> int:
    """How many ranges were drawn by what a value says. Raises StoreMismatch."""
    found = read(value, Draws)
    return 0 if found is None else found.drawn


def drawn(value: bytes, mark: str) -> bytes:
    """The value after one more draw. `mark`: of this draw alone."""
    return written(Draws(draws_in(value) + 1, mark))
