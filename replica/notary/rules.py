"""The notary's rules: a verdict is a deterministic function of the log up to the request's own record.

The index holds two kinds of entry. Key `s` + state reference: the transaction that consumed the state. Key `t` +
transaction id: the content digest it was notarised with. Both values end in the log offset at which they were recorded.
An entry counts only if that offset is below the offset of the judged record. So an old record, judged again on a newer
index, gets the old verdict. The record's command is judged first, by its newest acceptance (acceptances.py), then the
party's key, by its newest registration (parties.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from hashlib import sha256
from itertools import chain
from typing import NamedTuple

import msgspec

from replica.notary.acceptances import (
    COMMAND_KEY,
    Acceptance,
    counts,
    decode_acceptance,
    encode_acceptance,
    later_key,
    newer,
)
from replica.notary.counted import CountedRequest
from replica.notary.errors import InvariantBroken
from replica.notary.parties import decode_registration
from replica.notary.requests import Request

RULES_VERSION = 3  # the newest version of the rules that this release knows
STATE_KEY, TX_KEY = b"s", b"t"
_OFFSET_AT = 32  # both kinds of value are 32 bytes and a big-endian offset


class Outcome(Enum):
    """What the log decided for one request. Judged in this order; only NOTARISED is remembered."""

    DEDUPLICATED = "deduplicated"  # its command was accepted before, with this transaction: a repeated success
    PARTY_UNKNOWN = "party_unknown"
    KEY_NOT_VALID = "key_not_valid"
    COMMAND_ID_REUSED = "command_id_reused"
    NOTARISED = "notarised"
    TX_ID_REUSED = "tx_id_reused"
    CONFLICT = "conflict"
    TIME_WINDOW_CLOSED = "time_window_closed"

    __hash__ = object.__hash__  # that of Enum is a call of Python code, for every look-up of a code


class Usage(Enum):
    """How the refused request used a consumed state."""

    INPUT = "input"
    REFERENCE = "reference"


class Conflict(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One consumed state that caused a refusal. It names the consuming transaction by hash, as ids reveal too much."""

    state: bytes
    consumed_by_hash: bytes
    usage: Usage


class Verdict(msgspec.Struct, frozen=True, gc=False):
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


class Judged(NamedTuple):
    """A verdict for each entry, and the index entries to add: of states and transactions, and of commands."""

    verdicts: list[Verdict]
    added: dict[bytes, bytes]
    accepted: dict[bytes, bytes]


def judge(
    entries: Iterable[CountedRequest],
    keys: Sequence[Sequence[bytes]],
    known: Sequence[bytes | None],
    newest: Sequence[bytes | None],
    registered: Sequence[bytes | None],
) -> Judged:
    """Judge requests in log order, with the index's values of their keys. Earlier entries of the batch count.

    `keys` are `keys_of` each entry. `known` has a value or None for each key, in the order of the entries. It may come
    from a newer index than the entries': values recorded at or after an entry's own offset do not count for it.
    `newest` has, for each entry, the newest acceptance of its command that was recorded below its own offset; None:
    there is none. `registered` has, for each entry, the newest registration of its party's key below its own offset, or
    None. Raises InvariantBroken when the numbers of entries, keys and values differ.
    """
    _check_numbers(keys, known, newest, registered)
    verdicts: list[Verdict] = []
    added: dict[bytes, bytes] = {}
    accepted: dict[bytes, bytes] = {}
    newest_here: dict[bytes, bytes] = {}  # acceptances that the batch itself adds, by change id
    nothing_recorded = not any(known) and len(set(chain.from_iterable(keys))) == len(known)  # nor named twice here
    before: bytes | None = None
    start = 0
    for at, (entry, own) in enumerate(zip(entries, keys, strict=True)):
        offset, request, command = entry.offset, entry.request, entry.change_id
        before = newer(newest_here.get(command), newest[at])
        is_plain = nothing_recorded and before is None and request.window is None
        if is_plain and entry.rules_version == RULES_VERSION:  # nearly all
            outcome = key_outcome(registered[at], entry.judged_us)
            verdict = Verdict(Outcome.NOTARISED, offset) if outcome is None else Verdict(outcome)
        else:
            recorded = known[start : start + len(own)]
            if any(recorded) or not added.keys().isdisjoint(own):
                recorded = [
                    if_recorded_before(offset, added.get(key) or value)
                    for key, value in zip(own, recorded, strict=True)
                ]
            acceptance = decode_acceptance(before) if before else None
            verdict = RULES[entry.rules_version](entry, recorded, acceptance, registered[at])
        start += len(own)
        verdicts.append(verdict)
        if verdict.outcome is not Outcome.NOTARISED:
            continue
        accepts = encode_acceptance(request.tx_id, entry.content_digest, entry.judged_us, entry.ledger_offset, offset)
        newest_here[command] = accepts
        accepted[later_key(command, offset) if before else COMMAND_KEY + command] = accepts
        if verdict.notarised_offset == offset:
            recorded_at = offset.to_bytes(8, "big")
            added[own[0]] = entry.content_digest + recorded_at
            consumed = request.tx_id + recorded_at
            for key in own[1 : 1 + len(request.inputs)]:
                added[key] = consumed
    return Judged(verdicts, added, accepted)


def _check_numbers(
    keys: Sequence[Sequence[bytes]],
    known: Sequence[bytes | None],
    newest: Sequence[bytes | None],
    registered: Sequence[bytes | None],
) -> None:
    if (asked := sum(map(len, keys))) != len(known):  # a state that was not looked up would pass for unspent
        raise InvariantBroken(f"the index told of {len(known)} keys, asked for were {asked}")
    if len(newest) != len(keys):
        raise InvariantBroken(f"acceptances of {len(newest)} commands for {len(keys)} requests")
    if len(registered) != len(keys):
        raise InvariantBroken(f"registrations of {len(registered)} keys for {len(keys)} requests")


def key_outcome(registration: bytes | None, judged_us: int) -> Outcome | None:
    """Why a key is not in force at a time, by its newest registration; None if it is."""
    if registration is None:
        return Outcome.PARTY_UNKNOWN
    _, from_us, until_us, *_ = decode_registration(registration)
    return None if from_us <= judged_us < until_us else Outcome.KEY_NOT_VALID


def if_recorded_before(offset: int, value: bytes | None) -> bytes | None:
    """An index value, if it was recorded at a lower offset than that of the judged record."""
    return value if value is not None and int.from_bytes(value[_OFFSET_AT:], "big") < offset else None


def offset_in(value: bytes) -> int:
    """The log offset at which an index value was recorded."""
    return int.from_bytes(value[_OFFSET_AT:], "big")


Recorded = Sequence[bytes | None]
"""What was recorded before, in the order of `keys_of`; None where nothing was."""


def _by_states(entry: CountedRequest, recorded: Recorded) -> Verdict:
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


def _judge_v3(
    entry: CountedRequest, recorded: Recorded, newest: Acceptance | None, registration: bytes | None
) -> Verdict:
    """A repeated success, which changes nothing, stands. Then the key, the command, id, states and window.

    `newest` is the command's newest acceptance and `registration` the key's newest one, below the entry's offset.
    """
    record = entry.record
    if newest is not None and not counts(newest, entry.judged_us, record.deduplication_us, entry.terms.ledger_offset):
        newest = None
    if newest is not None and (newest.tx_id, newest.content_digest) == (entry.request.tx_id, entry.content_digest):
        return Verdict(Outcome.DEDUPLICATED, _notarised_at(entry, recorded))
    if (outcome := key_outcome(registration, entry.judged_us)) is not None:
        return Verdict(outcome)
    if newest is not None and not is_named_after_transaction(entry, newest):
        return Verdict(Outcome.COMMAND_ID_REUSED)
    return _by_states(entry, recorded)


def is_named_after_transaction(entry: CountedRequest, newest: Acceptance) -> bool:
    """Whether the command has no id that a caller chose, and was accepted with other content of the same transaction.

    Such a command is named after its transaction. In a conflict then no command id was used twice, but a transaction
    id: that is TX_ID_REUSED.
    """
    tx_id = entry.request.tx_id
    return newest.tx_id == tx_id and entry.terms.command_id == tx_id.hex()


def _notarised_at(entry: CountedRequest, recorded: Recorded) -> int:
    """Where a transaction that was accepted was first notarised."""
    notarised = recorded[0]
    if notarised is None or notarised[:_OFFSET_AT] != entry.content_digest:
        raise InvariantBroken(f"the command at offset {entry.offset} was accepted, and its transaction is nowhere")
    return int.from_bytes(notarised[_OFFSET_AT:], "big")


def _conflicts(request: Request, spent: Recorded) -> Iterator[Conflict]:
    """Every consumed state that the request uses, inputs first."""
    for at, (ref, value) in enumerate(zip((*request.inputs, *request.references), spent, strict=True)):
        if value is not None:
            usage = Usage.INPUT if at < len(request.inputs) else Usage.REFERENCE
            yield Conflict(ref, hash_of_tx_id(value[:_OFFSET_AT]), usage)


RULES: dict[int, Callable[[CountedRequest, Recorded, Acceptance | None, bytes | None], Verdict]] = {3: _judge_v3}
"""Every version of the rules that was ever in force; old ones stay, because old records are judged again."""
