"""Reads a log of format 1.0 from its first record: which records count, what each decided, and what is kept of it.

Written for clarity, one record at a time and every entry in one dictionary. It makes the golden vectors and is slow.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

from tests.golden.format_1_0 import transaction as tx_format
from tests.golden.format_1_0.packing import NotShortest, pack, unpack
from tests.golden.format_1_0.transaction import NEVER, ZEROS, NotCanonical, Transaction
from tests.golden.format_1_0.tree import add, root

FORMAT = RULES = 4
STEP = 4_096  # checkpoints name a multiple of it
TIME_END_US = 253_402_300_800_000_000  # the year 10000
LEDGER_OFFSET_MAX = 2**62  # that a lost record may name
OTHERS_FROM, SIGNS_FROM = 2**40, 2**62
VOID, NOTARISED, REPEATED, DEDUPLICATED, PARTY_UNKNOWN, KEY_NOT_VALID = 0, 1, 2, 3, 4, 5
COMMAND_REUSED, TX_REUSED, CONFLICT, CONSENT_MISSING, WINDOW_CLOSED = 6, 7, 8, 9, 10
GENESIS, IN_FORCE, BARRIER_AGAIN, SIGN_OF_LIFE, NOTE, NOTE_IDLE = 32, 33, 34, 35, 36, 37
AGREES, DIFFERS, NOT_JUDGED, LOST = 38, 39, 40, 41
_REQUEST, _SIGN, _NOTE, _CHECKPOINT = 1, 2, 3, 4
_LENGTHS = {_REQUEST: 13, _SIGN: 5, _NOTE: 13, _CHECKPOINT: 7}
_OFFICERS, _REGISTRATION, _ACT, _GENERATION = 0, 1, 2, 3
_LOST = b"notary/lost/2"
_VISIBLE = re.compile("[!-~]{0,255}")
_ACT_NAME = re.compile("[a-z0-9_./-]{1,64}")


class Refused(Exception):
    """The log has no genesis, a barrier names what this reader does not know, or a salvage is not there."""


@dataclass
class Decision:
    """What one record decided. `void`: why it is without effect; `states`: those that a refusal names."""

    outcome: int
    void: str = ""
    tx_id: bytes = ZEROS
    content: bytes = ZEROS
    disclosure: bytes = ZEROS
    first_success: int = 0
    states: list[list[Any]] = field(default_factory=list)
    leaf: bytes = b""


class Reader:
    """All that a reader knows after the records so far. `log_id`: the log's own identity.

    `salvages`: by digest, all their entries (key, value).
    """

    def __init__(self, log_id: str, salvages: Mapping[bytes, Sequence[tuple[bytes, bytes]]] | None = None) -> None:
        self.log_id, self.offset, self.digest = log_id, -1, b""
        self.salvages = salvages or {}
        self.genesis: list[Any] = []
        self.barrier: list[Any] | None = None
        self.barrier_offset, self.epoch_max, self.stamp_us = -1, 0, 0
        self.seen: set[int] = set()
        self.counted_offset = -1
        self.ledger_offset = self.generation = 0
        self.frontier: list[bytes] = []
        self.anchors: list[bytes] = []  # roots at the two newest multiples of STEP
        self.entries: dict[bytes, bytes] = {}

    # ---- one record -----------------------------------------------------------------------------------------------

    def read(self, raw: bytes) -> Decision:
        """Take the next record of the log. Raises Refused."""
        self.offset += 1
        try:
            decision = self._decide(raw)
        except (NotShortest, NotCanonical) as error:
            if self.offset == 0:
                raise Refused("no genesis") from error
            decision = Decision(VOID, "undecodable")
        self.digest = sha256(raw).digest()
        decision.leaf = self._leaf(decision)
        self.frontier = add(self.frontier, self.offset, sha256(b"\0" + decision.leaf).digest())
        if (self.offset + 1) % STEP == 0:
            self.anchors = [root(self.frontier), *self.anchors[:1]]
        self.entries[b"h" + _u8(self.offset)] = sha256(b"\0" + decision.leaf).digest() + self._kept(decision)
        return decision

    def _decide(self, raw: bytes) -> Decision:
        if self.genesis and raw.startswith(_LOST):
            return self._lost(raw)
        record = unpack(raw)
        if self.offset == 0:
            self.genesis = _genesis(record)
            self.entries[b"\x02"] = raw
            self._note(_OFFICERS, "", b"", pack(self.genesis[3]))
            return Decision(GENESIS)
        if not isinstance(record, list) or len(raw) > self.genesis[4][1]:
            raise NotCanonical("no array, or above the limit")
        if record[:1] == [0]:
            return self._barrier(_barrier(record))
        if self.barrier is None or _LENGTHS.get(_small(record[:1])) != len(record) or record[1] != FORMAT:
            raise NotCanonical("no record of the format in force")
        _need(_is_bytes(record[2], 16), _is_uint(record[3]) and record[3] < NEVER)
        _need(_is_uint(record[4]) and record[4] < TIME_END_US)
        parse = {_REQUEST: _request, _NOTE: _note, _CHECKPOINT: _checkpoint}.get(record[0])
        parsed = parse(record, self.genesis, self.offset) if parse else None
        if record[2] != self.barrier[2]:
            return Decision(VOID, "not_in_force")
        if record[3] in self.seen:
            return Decision(VOID, "repeat")
        self.seen.add(record[3])
        if self.barrier[4][0] == 1 and (record[3] < OTHERS_FROM or record[3] >= SIGNS_FROM):
            self.counted_offset = self.offset
        if record[0] == _REQUEST:
            assert isinstance(parsed, Transaction)
            return self._judge(record, parsed)
        if record[0] == _NOTE:
            return self._take_note(record)
        return Decision(SIGN_OF_LIFE if record[0] == _SIGN else self._agrees(record[5], record[6]))

    def _lost(self, raw: bytes) -> Decision:
        _need(len(raw) == len(_LOST) + 56)
        offset, ledger_offset, stamp_us = _number(raw[13:21]), _number(raw[21:29]), _number(raw[29:37])
        _need(offset == self.offset, ledger_offset <= LEDGER_OFFSET_MAX, stamp_us < TIME_END_US)
        if raw[37:] not in self.salvages:
            raise Refused("a salvage is not there")
        self.ledger_offset = max(self.ledger_offset, ledger_offset)
        self.stamp_us = max(self.stamp_us, stamp_us)
        for key, value in self.salvages[raw[37:]]:
            if _offset_in(value) == self.offset:
                assert key not in self.entries
                self.entries[key] = value
                self.generation += key.startswith(_subject(_GENERATION, "", b""))
        return Decision(LOST)

    def _barrier(self, record: list[Any]) -> Decision:
        if record == self.barrier:
            return Decision(BARRIER_AGAIN)
        if record[1] <= self.epoch_max:
            return Decision(VOID, "barrier_not_higher")
        is_claim = record[4][0] == 1
        if is_claim and self.counted_offset > record[4][1]:
            return Decision(VOID, "holder_wrote")
        if (record[5], record[6]) != (FORMAT, RULES):
            raise Refused(f"format {record[5]}, rules {record[6]}")
        self.barrier, self.barrier_offset, self.epoch_max, self.seen = record, self.offset, record[1], set()
        self.counted_offset = self.offset if is_claim else -1
        return Decision(IN_FORCE)

    def _agrees(self, size: int, named: bytes) -> int:
        newest = self.offset - self.offset % STEP  # its root is known: it covers only records before this one
        sizes = [newest, newest - STEP][: len(self.anchors)]
        if size not in sizes:
            return NOT_JUDGED
        return AGREES if self.anchors[sizes.index(size)] == named else DIFFERS

    # ---- requests -------------------------------------------------------------------------------------------------

    def _judge(self, record: list[Any], tx: Transaction) -> Decision:
        self.stamp_us = max(self.stamp_us, record[4])
        self.ledger_offset += 1
        content, change = tx_format.content_digest(tx), tx_format.change_id(tx)
        decision = Decision(VOID, "", tx.tx_id, content, record[10])
        accepted = self._newest(b"c" + change)
        decision.outcome = self._outcome(record, tx, decision, accepted)
        if decision.outcome in (NOTARISED, REPEATED):
            key = b"c" + change if accepted is None else b"c" + change + _u8(self.offset)
            self._put(key, tx.tx_id + content + _u8(self.stamp_us) + _u8(self.ledger_offset))
        if decision.outcome == NOTARISED:
            decision.first_success = self.offset
            self._put(b"t" + tx.tx_id, content + _u8(self._epoch) + _u8(self.stamp_us))
            for state in tx.inputs:
                self._put(b"s" + state, tx.tx_id)
            for one in tx.owners:
                self._put(b"o" + tx.tx_id + one.output.to_bytes(4, "big"), one.owner + _u8(one.free_from_us))
        return decision

    def _outcome(self, record: list[Any], tx: Transaction, decision: Decision, accepted: bytes | None) -> int:
        known = self.entries.get(b"t" + tx.tx_id)
        same = accepted is not None and accepted[:64] == tx.tx_id + decision.content
        counts = accepted is not None and self._is_within(record, tx, accepted)
        if counts and same:
            assert known is not None
            decision.first_success = _offset_in(known)
            return DEDUPLICATED
        registered = self._newest(_subject(_REGISTRATION, tx.party, record[8]))
        if registered is None:
            return PARTY_UNKNOWN
        _, from_us, until_us = _registration_body(registered[8:-8])
        if not from_us <= self.stamp_us < until_us:
            return KEY_NOT_VALID
        if counts and accepted is not None:
            named_after = accepted[:32] == tx.tx_id and tx.command_id == tx.tx_id.hex()
            return TX_REUSED if named_after else COMMAND_REUSED
        if known is not None:
            if known[:32] != decision.content:
                return TX_REUSED
            decision.first_success = _offset_in(known)
            return REPEATED
        outputs = [tx.tx_id + one.output.to_bytes(4, "big") for one in tx.owners]
        used = [("input", tx.inputs), ("reference", tx.references), ("output", outputs)]
        for usage, states in used:
            for state in states:
                if (spent := self.entries.get(b"s" + state)) is not None:
                    decision.states.append([state, sha256(spent[:32]).digest(), usage])
        if decision.states:
            return CONFLICT
        decision.states = [[state] for state in tx.inputs if not self._may_spend(record, state)]
        if decision.states:
            return CONSENT_MISSING
        if not (tx.from_us or 0) <= self.stamp_us < (NEVER + 1 if tx.until_us is None else tx.until_us):
            return WINDOW_CLOSED
        return NOTARISED

    def _is_within(self, record: list[Any], tx: Transaction, accepted: bytes) -> bool:
        judged_us, ledger_offset = _number(accepted[64:72]), _number(accepted[72:80])
        if tx.deduplication[0] == 2:
            return ledger_offset > tx.deduplication[1]
        return self.stamp_us - judged_us <= int(record[6])

    def _may_spend(self, record: list[Any], state: bytes) -> bool:
        entry = self.entries.get(b"o" + state)
        if entry is None or self.stamp_us >= _number(entry[32:40]):
            return True
        shown = next((one for one in record[11] if tx_format.owner_of(one) == entry[:32]), None)
        if shown is None:
            return False
        threshold, keys = tx_format.keys_of(shown)
        consenting = {record[8], *(key for key, _ in record[12])}
        return len(consenting.intersection(keys)) >= threshold

    # ---- notes ----------------------------------------------------------------------------------------------------

    def _take_note(self, record: list[Any]) -> Decision:
        kind, subject, before, body = record[5:9]
        about = _registration_body(body)[0] if kind == _REGISTRATION else b""
        if before != self._notes(kind, subject, about):
            return Decision(NOTE_IDLE)
        officers = self._newest(_subject(_OFFICERS, "", b""))
        assert officers is not None
        if kind != _ACT and record[11] not in unpack(officers[8:-8]):
            return Decision(NOTE_IDLE)
        if kind == _GENERATION:
            if unpack(body)[0] != self.generation:
                return Decision(NOTE_IDLE)
            self.generation += 1
        self._note(kind, subject, about, body)
        return Decision(NOTE)

    def _notes(self, kind: int, subject: str, about: bytes) -> int:
        newest = self._newest(_subject(kind, subject, about))
        return 0 if newest is None else _number(newest[:8])

    def _note(self, kind: int, subject: str, about: bytes, body: bytes) -> None:
        number = _u8(self._notes(kind, subject, about) + 1)
        self._put(_subject(kind, subject, about) + _u8(self.offset), number + body)

    # ---- what is kept ---------------------------------------------------------------------------------------------

    @property
    def _epoch(self) -> int:
        return 0 if self.barrier is None else int(self.barrier[1])

    def _put(self, key: bytes, value: bytes) -> None:
        assert key not in self.entries
        self.entries[key] = value + _u8(self.offset)

    def _newest(self, prefix: bytes) -> bytes | None:
        found = [key for key in self.entries if key.startswith(prefix) and len(key) in (len(prefix), len(prefix) + 8)]
        return self.entries[max(found)] if found else None

    def _leaf(self, decision: Decision) -> bytes:
        counts = decision.outcome not in (VOID, LOST)
        return b"".join(
            (
                b"notary/leaf/1",
                _u8(self.offset),
                self.digest,
                bytes([decision.outcome]),
                decision.tx_id,
                decision.content,
                decision.disclosure,
                _u8(decision.first_success),
                _u8(self._epoch if counts else 0),
                _u8(self.stamp_us if counts else 0),
            )
        )

    def _kept(self, decision: Decision) -> bytes:
        return bytes([decision.outcome]) + decision.leaf[-24:]

    @property
    def position(self) -> bytes:
        """The bytes of the position after the newest record."""
        ranges: list[list[int]] = []
        for number in sorted(self.seen):
            if ranges and ranges[-1][1] == number:
                ranges[-1][1] = number + 1
            else:
                ranges.append([number, number + 1])
        head = [4, self._ledger_id, self.log_id, self.offset, self.digest, self.barrier, self.barrier_offset]
        rest = [self.stamp_us, ranges, self.counted_offset, self.ledger_offset, self.generation]
        return pack([*head, *rest, self.frontier, self.anchors])

    @property
    def _ledger_id(self) -> bytes:
        return bytes(self.genesis[2]) if self.genesis else bytes(16)


def _genesis(record: Any) -> list[Any]:
    _need(isinstance(record, list) and len(record) == 6 and record[:2] == [8, 1])
    _, _, ledger_id, officers, limits, ancestors = record
    _need(_is_bytes(ledger_id, 16), _is_officers(officers), isinstance(limits, list) and len(limits) == 3)
    _need(all(map(_is_uint, limits)))
    _need(1 <= limits[0] <= 9_999, 10_000 <= limits[1] <= 1_000_000)
    _need(isinstance(ancestors, list) and len(ancestors) <= 16)
    _need(all(isinstance(one, list) and len(one) == 2 for one in ancestors))
    _need(all(_is_bytes(one[0], 16) and _is_uint(one[1]) for one in ancestors))
    _need(all(first[1] < second[1] for first, second in pairwise(ancestors)))
    return list(record)


def _barrier(record: list[Any]) -> list[Any]:
    _need(len(record) == 8)
    _, epoch, activation, replica, granter, record_format, rules, term = record
    _need(_is_uint(epoch) and epoch >= 1, _is_bytes(activation, 16), _is_name(replica))
    _need(_is_uint(record_format), _is_uint(rules))
    is_later = (record_format, rules) != (FORMAT, RULES) and isinstance(granter, list)
    _need(_is_granter(granter) or (is_later and _is_uint(_small(granter)) and granter[0] > 3))
    _need(term is None or (isinstance(term, list) and len(term) == 2 and _is_name(term[0]) and _is_uint(term[1])))
    return record


def _is_granter(granter: Any) -> bool:
    if not isinstance(granter, list) or not granter:
        return False
    tag, rest = granter[0], granter[1:]
    if tag in (0, 3) and len(rest) == 3 + (tag == 3):
        by = tag == 0 or _is_name(rest[3])
        return by and _is_name(rest[0]) and _is_name(rest[1]) and _is_uint(rest[2])
    if tag == 1 and len(rest) == 1:
        return isinstance(rest[0], int) and -1 <= rest[0] <= NEVER
    return tag == 2 and len(rest) == 1 and _is_name(rest[0])


def _request(record: list[Any], genesis: list[Any], offset: int) -> Transaction:
    _, _, _, _, _, canonical, period_us, submission_id, key, signature, disclosure, openings, consents = record
    _need(isinstance(canonical, bytes), _is_uint(period_us), tx_format.is_text(submission_id, tx_format.ID_MAX))
    _need(tx_format.is_key(key), _is_bytes(signature, 64), _is_bytes(disclosure, 32))
    _need(isinstance(openings, list) and len(openings) <= 256, isinstance(consents, list) and len(consents) <= 256)
    _need(all(isinstance(one, bytes) for one in openings))
    for one in openings:
        tx_format.keys_of(one)
    _need(all(isinstance(one, list) and len(one) == 2 for one in consents))
    _need(all(tx_format.is_key(one[0]) and _is_bytes(one[1], 64) for one in consents))
    _need(_ascend(openings), _ascend([one[0] for one in consents]))
    tx = tx_format.decode(canonical)
    named = next((one for one, end in genesis[5] if offset < end), genesis[2])
    kind, value = tx.deduplication
    in_force = {0: period_us <= genesis[4][2], 1: period_us == value <= genesis[4][2], 2: period_us == NEVER}
    _need(tx.ledger_id == named, in_force[kind], len(tx.inputs) + len(tx.references) <= genesis[4][0])
    _need(tx.seed is not None or disclosure == ZEROS)
    return tx


def _note(record: list[Any], _genesis: list[Any], _offset: int) -> None:
    kind, subject, before, body, name, reason, key, signature = record[5:]
    _need(isinstance(body, bytes) and len(body) <= 65_536, _is_uint(before), _is_bytes(signature, 64))
    _need(tx_format.is_text(name), tx_format.is_text(reason), tx_format.is_key(key), kind in (0, 1, 2, 3))
    _need(isinstance(subject, str))
    if kind == _REGISTRATION:
        _need(tx_format.is_text(subject))
        _registration_body(body)
    elif kind == _ACT:
        _need(_ACT_NAME.fullmatch(subject) is not None)
    elif kind == _OFFICERS:
        _need(subject == "", _is_officers(unpack(body)))
    else:
        _need(subject == "", _is_generation(unpack(body)))


def _is_generation(body: Any) -> bool:
    if not isinstance(body, list) or len(body) != 6:
        return False
    generation, size, named, lost, salvage, term = body
    is_range = lost is None or (isinstance(lost, list) and len(lost) == 2 and all(map(_is_uint, lost)))
    is_term = term is None or (isinstance(term, list) and len(term) == 2 and _is_name(term[0]) and _is_uint(term[1]))
    numbers = _is_uint(generation) and _is_uint(size) and _is_bytes(named, 32)
    return numbers and is_range and is_term and (salvage is None or _is_bytes(salvage, 32))


def _registration_body(body: bytes) -> tuple[bytes, int, int]:
    fields = unpack(body)
    _need(isinstance(fields, list) and len(fields) == 3)
    key, from_us, until_us = fields
    _need(tx_format.is_key(key), _is_uint(from_us), _is_uint(until_us))
    return key, from_us, until_us


def _checkpoint(record: list[Any], _genesis: list[Any], _offset: int) -> None:
    _need(_is_uint(record[5]), _is_bytes(record[6], 32))


def _subject(kind: int, subject: str, about: bytes) -> bytes:
    raw = subject.encode()
    return b"n" + bytes([kind]) + len(raw).to_bytes(2, "big") + raw + about


def _is_officers(keys: Any) -> bool:
    return isinstance(keys, list) and 1 <= len(keys) <= 100 and all(map(tx_format.is_key, keys)) and _ascend(keys)


def _ascend(values: list[bytes]) -> bool:
    return all(first < second for first, second in pairwise(values))


def _is_name(text: Any) -> bool:
    return isinstance(text, str) and _VISIBLE.fullmatch(text) is not None


def _is_uint(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value <= NEVER


def _is_bytes(value: Any, length: int) -> bool:
    return isinstance(value, bytes) and len(value) == length


def _small(head: list[Any]) -> int:
    return head[0] if head and isinstance(head[0], int) else -1


def _need(*holds: bool) -> None:
    if not all(holds):
        raise NotCanonical("a field has another form")


def _u8(value: int) -> bytes:
    return value.to_bytes(8, "big")


def _number(raw: bytes) -> int:
    return int.from_bytes(raw, "big")


def _offset_in(value: bytes) -> int:
    return _number(value[-8:])
