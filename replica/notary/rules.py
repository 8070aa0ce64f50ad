"""The notary's rules: a verdict is a deterministic function of the log up to the request's own record.

The index holds two kinds of entry. Key `s` + state reference: the transaction that consumed the state. Key `t` +
transaction id: the content digest it was notarised with. Both values end in the log offset at which they were recorded.
An entry counts only if that offset is below the offset of the judged record. So an old record, judged again on a newer
index, gets the old verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from hashlib import sha256

import msgspec

from replica.notary.counted import CountedRequest
from replica.notary.errors import InvariantBroken
from replica.notary.requests import Request

RULES_VERSION = 1  # the newest version of the rules that this release writes into its barriers
STATE_KEY, TX_KEY = b"s", b"t"
_OFFSET_AT = 32  # both kinds of value are 32 bytes and a big-endian offset


class Outcome(Enum):
    """What the log decided for one request. Judged in this order; only NOTARISED is remembered."""

    NOTARISED = "notarised"
    TX_ID_REUSED = "tx_id_reused"
    CONFLICT = "conflict"
    TIME_WINDOW_CLOSED = "time_window_closed"


class Usage(Enum):
    """How the refused request used a consumed state."""

    INPUT = "input"
    REFERENCE = "reference"


class Conflict(msgspec.Struct, frozen=True, array_like=True):
    """One consumed state that caused a refusal. It names the consuming transaction by hash, as ids reveal too much."""

    state: bytes
    consumed_by_hash: bytes
    usage: Usage


class Verdict(msgspec.Struct, frozen=True):
    """The answer to one request record. `notarised_offset` is where the transaction was first notarised."""

    outcome: Outcome
    notarised_offset: int | None = None
    conflicts: tuple[Conflict, ...] = ()


def hash_of_tx_id(tx_id: bytes) -> bytes:
    """The name of a consuming transaction in a conflict: its parties recognise the hash, others learn nothing."""
    return sha256(tx_id).digest()


def keys_of(entry: CountedRequest) -> list[bytes]:
    """The index keys that judging a request needs: its transaction id's, its inputs', its references'."""
    request = entry.request
    states = request.inputs + request.references if request.references else request.inputs
    return [TX_KEY + request.tx_id, *[STATE_KEY + state for state in states]]


def judge(
    entries: Iterable[CountedRequest], keys: Sequence[Sequence[bytes]], known: Sequence[bytes | None]
) -> tuple[list[Verdict], dict[bytes, bytes]]:
    """Judge requests in log order, with the index's values of their keys. Earlier entries of the batch count.

    `keys` are `keys_of` each entry. `known` has a value or None for each key, in the order of the entries.
    Returns a verdict for each entry, and the index entries to add. `known` may come from a newer index than the
    entries': values recorded at or after an entry's own offset do not count for it.
    Raises InvariantBroken when keys and values do not match in number.
    """
    if (asked := sum(map(len, keys))) != len(known):  # a state that was not looked up would pass for unspent
        raise InvariantBroken(f"the index told of {len(known)} keys, asked for were {asked}")
    verdicts: list[Verdict] = []
    added: dict[bytes, bytes] = {}
    start = 0
    for entry, own in zip(entries, keys, strict=True):
        end = start + len(own)
        recorded = known[start:end]
        start = end
        if any(recorded) or not added.keys().isdisjoint(own):  # seldom
            recorded = [
                if_recorded_before(entry.offset, added.get(key) or value)
                for key, value in zip(own, recorded, strict=True)
            ]
        verdict = RULES[entry.rules_version](entry, recorded)
        verdicts.append(verdict)
        if verdict.outcome is Outcome.NOTARISED and verdict.notarised_offset == entry.offset:
            at = entry.offset.to_bytes(8, "big")
            added[own[0]] = entry.content_digest + at
            consumed = entry.request.tx_id + at
            for key in own[1 : 1 + len(entry.request.inputs)]:
                added[key] = consumed
    return verdicts, added


def if_recorded_before(offset: int, value: bytes | None) -> bytes | None:
    """An index value, if it was recorded at a lower offset than that of the judged record."""
    return value if value is not None and int.from_bytes(value[_OFFSET_AT:], "big") < offset else None


Recorded = Sequence[bytes | None]
"""What was recorded before, in the order of `keys_of`; None where nothing was."""


def _judge_v1(entry: CountedRequest, recorded: Recorded) -> Verdict:
    request = entry.request
    notarised = recorded[0]
    if notarised is not None:
        if notarised[:_OFFSET_AT] == entry.content_digest:
            return Verdict(Outcome.NOTARISED, int.from_bytes(notarised[_OFFSET_AT:], "big"))
        return Verdict(Outcome.TX_ID_REUSED)
    if any(recorded):
        return Verdict(Outcome.CONFLICT, conflicts=tuple(_conflicts(request, recorded[1:])))
    if request.window is not None and not request.window.contains(entry.judged_us):
        return Verdict(Outcome.TIME_WINDOW_CLOSED)
    return Verdict(Outcome.NOTARISED, entry.offset)


def _conflicts(request: Request, spent: Recorded) -> Iterator[Conflict]:
    """Every consumed state that the request uses, inputs first."""
    for at, (ref, value) in enumerate(zip((*request.inputs, *request.references), spent, strict=True)):
        if value is not None:
            usage = Usage.INPUT if at < len(request.inputs) else Usage.REFERENCE
            yield Conflict(ref, hash_of_tx_id(value[:_OFFSET_AT]), usage)


RULES: dict[int, Callable[[CountedRequest, Recorded], Verdict]] = {1: _judge_v1}
"""Every version of the rules that was ever in force; old ones stay, because old records are judged again."""
