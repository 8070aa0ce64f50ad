"""The notary's rules: a verdict is a deterministic function of the log up to the request's own record.

The index holds two kinds of entry. Key `s` + state reference: the transaction that consumed the state. Key `t` +
transaction id: the content digest it was notarised with. Both values end in the log offset they were recorded at, and
an entry counts only if that offset is below the judged record's own, so that judging an old record again on a newer
index gives the old verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from hashlib import sha256
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from replica.notary.reading import CountedRequest

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
    """How the refused request used a state that was consumed already."""

    INPUT = "input"
    REFERENCE = "reference"


class Conflict(msgspec.Struct, frozen=True, array_like=True):
    """One state that stood in the way. The consuming transaction is named by its hash: ids reveal too much."""

    state: bytes
    consumed_by_hash: bytes
    usage: Usage


class Verdict(msgspec.Struct, frozen=True):
    """The answer to one request record. `notarised_offset` is where the transaction was first notarised."""

    outcome: Outcome
    notarised_offset: int | None = None
    conflicts: tuple[Conflict, ...] = ()


def hash_of_tx_id(tx_id: bytes) -> bytes:
    """What a conflict tells of the consuming transaction: its parties recognise it, others learn nothing."""
    return sha256(tx_id).digest()


def keys_of(entry: CountedRequest) -> list[bytes]:
    """The index keys that judging a request needs."""
    request = entry.request
    return [TX_KEY + request.tx_id, *[STATE_KEY + ref for ref in (*request.inputs, *request.references)]]


def judge(
    entries: Iterable[CountedRequest], known: Mapping[bytes, bytes | None]
) -> tuple[list[Verdict], dict[bytes, bytes]]:
    """Judge requests in log order against what the index knows of their keys; earlier entries of the batch count.

    Returns a verdict for each entry, and the index entries to add. `known` may come from a newer index than the
    entries': what was recorded at or behind an entry's own offset does not count for it.
    """
    verdicts: list[Verdict] = []
    added: dict[bytes, bytes] = {}
    for entry in entries:
        verdict, entry_adds = RULES[entry.rules_version](entry, added, known)
        verdicts.append(verdict)
        added.update(entry_adds)
    return verdicts, added


Known = Mapping[bytes, bytes | None]
_NOTHING: dict[bytes, bytes] = {}


def _judge_v1(entry: CountedRequest, added: Known, known: Known) -> tuple[Verdict, dict[bytes, bytes]]:
    request, offset = entry.request, entry.offset

    def recorded(key: bytes) -> bytes | None:
        value = added.get(key) or known.get(key)
        if value is None or int.from_bytes(value[_OFFSET_AT:], "big") >= offset:
            return None
        return value

    tx_key = TX_KEY + request.tx_id
    notarised = recorded(tx_key)
    if notarised is not None:
        if notarised[:_OFFSET_AT] == entry.content_digest:
            return Verdict(Outcome.NOTARISED, int.from_bytes(notarised[_OFFSET_AT:], "big")), _NOTHING
        return Verdict(Outcome.TX_ID_REUSED), _NOTHING
    input_keys = [STATE_KEY + ref for ref in request.inputs]
    conflicts = [
        Conflict(key[1:], hash_of_tx_id(spent[:_OFFSET_AT]), usage)
        for usage, keys in ((Usage.INPUT, input_keys), (Usage.REFERENCE, [STATE_KEY + r for r in request.references]))
        for key in keys
        if (spent := recorded(key)) is not None
    ]
    if conflicts:
        return Verdict(Outcome.CONFLICT, conflicts=tuple(conflicts)), _NOTHING
    if request.window is not None and not request.window.contains(entry.judged_us):
        return Verdict(Outcome.TIME_WINDOW_CLOSED), _NOTHING
    at = offset.to_bytes(8, "big")
    adds = dict.fromkeys(input_keys, request.tx_id + at)
    adds[tx_key] = entry.content_digest + at
    return Verdict(Outcome.NOTARISED, offset), adds


RULES: dict[int, Callable[[CountedRequest, Known, Known], tuple[Verdict, dict[bytes, bytes]]]] = {1: _judge_v1}
"""Every version of the rules that was ever in force; old ones stay, because old records are judged again."""
