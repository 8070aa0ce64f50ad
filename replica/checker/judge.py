"""The reference judge: a second implementation of the void rule and the rules, with one dict and one set for each.

It is written from the text of the design and shares no code with `replica.notary.reading` and `replica.notary.rules`,
so a mistake goes unnoticed only if it was made twice. It reads the whole log from the first record on, one record at a
time. Its memory grows with the states consumed, the transactions notarised and the commands accepted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

import msgspec

from replica.checker.history import CommandIds
from replica.notary.canonical import decode_request
from replica.notary.errors import BadRequest, FormatUnknown, InvariantBroken
from replica.notary.genesis import NO_LEDGER
from replica.notary.granters import Claim
from replica.notary.records import (
    ActRecord,
    BarrierRecord,
    NoteRecord,
    RegistrationRecord,
    RequestRecord,
    SignOfLifeRecord,
    Undecodable,
    decode_record,
)
from replica.notary.requests import Request, TimeWindow, check_command
from replica.notary.salvage import NO_SALVAGES, TX_KEY, Salvages, lost_named

PARTY_UNKNOWN = "PARTY_UNKNOWN"
KEY_NOT_VALID = "KEY_NOT_VALID"
NOTARISED = "NOTARISED"
DEDUPLICATED = "DEDUPLICATED"
COMMAND_ID_REUSED = "COMMAND_ID_REUSED"
TX_ID_REUSED = "TX_ID_REUSED"
STATE_CONFLICT = "STATE_CONFLICT"
TIME_WINDOW_CLOSED = "TIME_WINDOW_CLOSED"

UNDECODABLE = "undecodable"
NOT_IN_FORCE = "not_in_force"
REPEAT = "repeat"
BARRIER_NOT_HIGHER = "barrier_not_higher"
HOLDER_WROTE = "holder_wrote"


class JudgedVoid(msgspec.Struct, frozen=True, gc=False):
    """A record without effect; `reason` is one of the five above."""

    offset: int
    reason: str


class JudgedBarrier(msgspec.Struct, frozen=True, gc=False):
    """A barrier that came into force; or, if `repeated`, a copy of the barrier in force, which changes nothing."""

    offset: int
    record: BarrierRecord
    repeated: bool


class JudgedGenesis(msgspec.Struct, frozen=True, gc=False):
    """The first record of a log: which ledger it is, and the public keys of its first officers."""

    offset: int
    ledger_id: bytes
    officers: tuple[bytes, ...]


class JudgedNote(msgspec.Struct, frozen=True, gc=False):
    """Any other record that counts; it has no verdict. `judged_us`: the highest stamp before it."""

    offset: int
    record: NoteRecord | SignOfLifeRecord
    barrier: BarrierRecord
    judged_us: int


class Acceptance(msgspec.Struct, frozen=True, gc=False):
    """That a command was accepted: for which transaction and content, at which time judged and ledger offset."""

    tx_id: bytes
    content_digest: bytes
    judged_us: int
    ledger_offset: int
    offset: int


class ConsumedState(msgspec.Struct, frozen=True, gc=False):
    """A consumed state that caused a refusal: its consumer, where it was consumed, and how the request used it."""

    state: bytes
    consumed_by: bytes  # transaction id
    consumed_at: int  # log offset
    usage: str  # "input" or "reference"


class JudgedRequest(msgspec.Struct, frozen=True, gc=False):
    """A request that counts, with its verdict. `barrier` is the one in force; `notarised_offset` None if refused.

    `change_id` identifies the command; `acceptance` is its newest before this record, whether it counts or not.
    `ledger_offset` is that of the completion.
    """

    offset: int
    ledger_offset: int
    record: RequestRecord
    barrier: BarrierRecord
    request: Request
    content_digest: bytes
    judged_us: int
    outcome: str
    notarised_offset: int | None
    conflicts: tuple[ConsumedState, ...]
    command: CommandIds
    change_id: bytes
    acceptance: Acceptance | None


class JudgedLost(msgspec.Struct, frozen=True, gc=False):
    """A lost record, and the transaction that it notarised according to its salvage; None: it notarised none."""

    offset: int
    tx_id: bytes | None
    content_digest: bytes | None


Judged = JudgedLost | JudgedVoid | JudgedGenesis | JudgedBarrier | JudgedNote | JudgedRequest


class ReferenceJudge:
    """Reads a log from offset 0 and says of each record what it is."""

    def __init__(self, salvages: Salvages = NO_SALVAGES) -> None:
        """`salvages`: those that lost records name; a lost record without its salvage raises SalvageMissing."""
        self._salvages = salvages
        self.offset = -1  # of the newest record read
        self.ledger_id = NO_LEDGER
        self.barrier: BarrierRecord | None = None  # in force
        self.sequences: set[int] = set()  # met in the activation in force
        self.holder_wrote_at = -1  # offset of the newest counting record of who opened the activation in force
        self.stamp_us = 0  # highest of all counting requests so far
        self.ledger_offset = 0  # of the newest completion
        self.consumed: dict[bytes, bytes] = {}  # state -> consuming transaction id
        self.notarised: dict[bytes, tuple[bytes, int]] = {}  # transaction id -> content digest, offset
        self.accepted: dict[bytes, Acceptance] = {}  # change id -> the newest acceptance
        self.officers: list[bytes] = []  # public keys of those whose registrations have an effect
        self.acts_on_officers = 0
        self.registered: dict[bytes, tuple[int, int]] = {}  # see _pair_of -> from, until
        self.registrations: Counter[bytes] = Counter()  # see _pair_of -> how many had an effect

    def judge(self, log: Iterable[tuple[int, bytes]]) -> Iterator[Judged]:
        """Judge the next records (offset, value). Raises InvariantBroken on a gap, FormatUnknown for a newer log."""
        for offset, value in log:
            yield self.read(offset, value)

    def read(self, offset: int, value: bytes) -> Judged:
        """Judge the next record; see `judge`."""
        if offset != self.offset + 1:
            raise InvariantBroken(f"the log goes from offset {self.offset} to {offset}")
        self.offset = offset
        barrier = self.barrier
        if (found := self._of_no_format(value)) is not None:
            return found
        try:
            record = decode_record(value, 0 if barrier is None else barrier.record_format)
            if isinstance(record, BarrierRecord):
                return self._barrier(record)
            if barrier is None or record.activation_id != barrier.activation_id:
                return JudgedVoid(offset, NOT_IN_FORCE)
            if isinstance(record, RequestRecord):
                return self._request(record, barrier, *_request_in(record))
            return self._without_verdict(record, barrier)
        except (Undecodable, BadRequest):
            return JudgedVoid(offset, UNDECODABLE)

    def _of_no_format(self, value: bytes) -> Judged | None:
        """What is no record of a format: the genesis, or a lost record."""
        if self.offset == 0 and (genesis := _genesis_in(value)) is not None:
            self.ledger_id, self.officers, self.acts_on_officers = genesis.ledger_id, list(genesis.officers), 1
            return genesis
        if (lost := lost_named(self.offset, value)) is not None:
            self.ledger_offset = max(self.ledger_offset, lost.ledger_offset)
            self.stamp_us = max(self.stamp_us, lost.judged_us)
            return self._lost(self._salvages.entries_of([(self.offset, value)]))
        return None

    def _lost(self, entries: Mapping[bytes, bytes]) -> Judged:
        digest = tx_id = None
        for key, value in sorted(entries.items()):
            if key[:1] == b"c":
                judged_us, ledger_offset = (int.from_bytes(value[at : at + 8], "big") for at in (64, 72))
                self.accepted[key[1:33]] = Acceptance(value[:32], value[32:64], judged_us, ledger_offset, self.offset)
            elif key[:1] == b"o":
                self.acts_on_officers = int.from_bytes(value[:8], "big")
                self.officers = _officers_in(value[8:-8])
            elif key[:1] == b"p":
                from_us, until_us, number = (int.from_bytes(value[at : at + 8], "big") for at in (32, 40, 48))
                self.registered[key[1:33]] = from_us, until_us
                self.registrations[key[1:33]] = number
            elif key[:1] == TX_KEY:
                tx_id, digest = key[1:], value[:32]
                if tx_id in self.notarised:
                    raise InvariantBroken(f"the salvage notarises {tx_id.hex()} again, at offset {self.offset}")
                self.notarised[tx_id] = (digest, self.offset)
            elif key[1:] in self.consumed:
                raise InvariantBroken(f"the salvage consumes state {key[1:].hex()} again, at offset {self.offset}")
            else:
                self.consumed[key[1:]] = value[:32]
        return JudgedLost(self.offset, tx_id, digest)

    def _barrier(self, record: BarrierRecord) -> Judged:
        in_force = self.barrier
        if record == in_force:
            return JudgedBarrier(self.offset, record, repeated=True)
        if in_force is not None and record.epoch <= in_force.epoch:
            return JudgedVoid(self.offset, BARRIER_NOT_HIGHER)
        if in_force is not None and _claimed(in_force) is not None:
            witnessed = _claimed(record)
            if witnessed is not None and self.holder_wrote_at > witnessed:
                return JudgedVoid(self.offset, HOLDER_WROTE)
        rules = RULES.get(record.rules_version)
        if rules is None or rules.record_format != record.record_format:
            raise FormatUnknown(f"the barrier of epoch {record.epoch} asks for what the judge does not know")
        self.barrier = record
        self.holder_wrote_at = self.offset
        self.sequences = set()
        return JudgedBarrier(self.offset, record, repeated=False)

    def _without_verdict(self, record: NoteRecord | SignOfLifeRecord, barrier: BarrierRecord) -> Judged:
        if record.sequence in self.sequences:
            return JudgedVoid(self.offset, REPEAT)
        self._count(record.sequence)
        if isinstance(record, ActRecord) and record.name == "officers":
            self._name_officers(record)
        if isinstance(record, RegistrationRecord) and record.public_key in self.officers:
            self._register(record)
        return JudgedNote(self.offset, record, barrier, self.stamp_us)

    def _count(self, sequence: int) -> None:
        """Numbers from 2^40 up to 2^62 are of replicas that do not hold the lease."""
        self.sequences.add(sequence)
        if not 1 << 40 <= sequence < 1 << 62:
            self.holder_wrote_at = self.offset

    def _register(self, record: RegistrationRecord) -> None:
        """What an officer signed has an effect only after all those that the officer knew of."""
        pair = _pair_of(record.party, record.party_key)
        if record.before == self.registrations[pair]:
            self.registrations[pair] += 1
            self.registered[pair] = record.from_us, record.until_us

    def _name_officers(self, act: ActRecord) -> None:
        named = _officers_in(act.body)
        if act.replaces == self.acts_on_officers and named and act.public_key in self.officers:
            self.officers = named
            self.acts_on_officers += 1

    def _request(
        self, record: RequestRecord, barrier: BarrierRecord, request: Request, digest: bytes, ids: CommandIds
    ) -> Judged:
        if request.ledger_id != self.ledger_id:
            return JudgedVoid(self.offset, UNDECODABLE)
        if record.sequence in self.sequences:
            return JudgedVoid(self.offset, REPEAT)
        self._count(record.sequence)
        self.stamp_us = max(self.stamp_us, record.stamp_us)
        self.ledger_offset += 1
        command = _change_id(ids)
        before = self.accepted.get(command)
        conflicts: list[ConsumedState] = []
        outcome = RULES[barrier.rules_version].before_states(self, record, request, digest, ids.command_id, before)
        if outcome is None:
            outcome, conflicts = self._by_states(request, digest)
        if outcome == NOTARISED:
            self.accepted[command] = Acceptance(request.tx_id, digest, self.stamp_us, self.ledger_offset, self.offset)
        is_success = outcome in (NOTARISED, DEDUPLICATED)
        return JudgedRequest(
            self.offset,
            self.ledger_offset,
            record,
            barrier,
            request,
            digest,
            self.stamp_us,
            outcome,
            self.notarised[request.tx_id][1] if is_success else None,
            tuple(conflicts),
            ids,
            command,
            before,
        )

    def before_states(
        self, record: RequestRecord, request: Request, digest: bytes, command_id: str, accepted: Acceptance | None
    ) -> str | None:
        """Steps 1 to 3 of the rules; None: step 4 decides."""
        if accepted is not None and not self._counts(accepted, record):
            accepted = None
        if accepted is not None and (accepted.tx_id, accepted.content_digest) == (request.tx_id, digest):
            return DEDUPLICATED
        if (refusal := self._by_key(request.party, record.public_key)) is not None:
            return refusal
        if accepted is None:
            return None
        is_named_after_it = command_id == "".join(f"{byte:02x}" for byte in request.tx_id)
        return None if accepted.tx_id == request.tx_id and is_named_after_it else COMMAND_ID_REUSED

    def _counts(self, accepted: Acceptance, record: RequestRecord) -> bool:
        """Whether a command's newest acceptance is within the record's period, or above the ledger offset that was
        signed."""
        if record.request[-10] == 2:
            return accepted.ledger_offset > int.from_bytes(record.request[-9:-1], "big")
        return self.stamp_us <= accepted.judged_us + record.deduplication_us

    def _by_key(self, party: str, public_key: bytes) -> str | None:
        """None: the key is in force."""
        period = self.registered.get(_pair_of(party, public_key))
        if period is None:
            return PARTY_UNKNOWN
        from_us, until_us = period
        return KEY_NOT_VALID if self.stamp_us < from_us or self.stamp_us >= until_us else None

    def _by_states(self, request: Request, digest: bytes) -> tuple[str, list[ConsumedState]]:
        """The verdict, with the states that are in the way; what is notarised for the first time is noted."""
        if request.tx_id in self.notarised:
            return (NOTARISED if self.notarised[request.tx_id][0] == digest else TX_ID_REUSED), []
        if conflicts := self._conflicts(request):
            return STATE_CONFLICT, conflicts
        if not _is_inside(request.window, self.stamp_us):
            return TIME_WINDOW_CLOSED, []
        self.notarised[request.tx_id] = (digest, self.offset)
        for state in request.inputs:
            self.consumed[state] = request.tx_id
        return NOTARISED, []

    def _conflicts(self, request: Request) -> list[ConsumedState]:
        conflicts = []
        for usage, states in (("input", request.inputs), ("reference", request.references)):
            for state in states:
                if state in self.consumed:
                    consumed_by = self.consumed[state]
                    conflicts.append(ConsumedState(state, consumed_by, self.notarised[consumed_by][1], usage))
        return conflicts


class Rules(NamedTuple):
    """A version of the rules: the record format that it comes with, and what may decide before states are looked at."""

    record_format: int
    before_states: Callable[[ReferenceJudge, RequestRecord, Request, bytes, str, Acceptance | None], str | None]


RULES = {3: Rules(2, ReferenceJudge.before_states)}


def _claimed(barrier: BarrierRecord) -> int | None:
    """The offset that a claim to a lease names; None for any other barrier."""
    return barrier.granter.witnessed if isinstance(barrier.granter, Claim) else None


def _pair_of(party: str, public_key: bytes) -> bytes:
    """What identifies a key of a party."""
    return sha256(b"notary/party-key/1" + _lengths_and(party) + public_key).digest()


def _genesis_in(value: bytes) -> JudgedGenesis | None:
    """The head of an array of four, kind 8, layout 1, 16 bytes with their head; then the keys as in `_officers_in`."""
    officers = _officers_in(b"\x92\x01" + value[21:])
    is_genesis = value[:5] == b"\x94\x08\x01\xc4\x10" and officers
    return JudgedGenesis(0, value[5:21], tuple(officers)) if is_genesis else None


def _officers_in(body: bytes) -> list[bytes]:
    """The keys in the body of an act about the officers; none if it is not exactly that. Its heads are written out:
    an array of 2, the number 1, an array with a head of one byte or of three, and 34 bytes for each key."""
    is_short = body[:2] == b"\x92\x01" and b"\x91" <= body[2:3] <= b"\x9f"
    head, number = (3, body[2] - 0x90) if is_short else (5, int.from_bytes(body[3:5], "big"))
    if len(body) != head + 34 * number or not 1 <= number <= 100:
        return []
    if head == 5 and (body[:3] != b"\x92\x01\xdc" or number < 16):
        return []
    items = [body[at : at + 34] for at in range(head, len(body), 34)]
    ascending = all(items[at] < items[at + 1] for at in range(number - 1))
    return [item[2:] for item in items] if ascending and all(item[:2] == b"\xc4\x20" for item in items) else []


def _is_inside(window: TimeWindow | None, time_us: int) -> bool:
    """[from, until): from inclusive, until exclusive."""
    if window is None:
        return True
    if window.from_us is not None and time_us < window.from_us:
        return False
    return window.until_us is None or time_us < window.until_us


def _request_in(record: RequestRecord) -> tuple[Request, bytes, CommandIds]:
    """The request, its content digest and its command: party, user, command and who acts, each text after its length;
    then one byte, a number and a zero about deduplication."""
    raw = record.request
    states = int.from_bytes(raw[64:66], "big") + int.from_bytes(raw[66:68], "big")
    _, end = _text_at(raw, 70 + 36 * states + 1 + 8 + 8)
    user_id, at = _text_at(raw, end)
    command_id, at = _text_at(raw, at)
    act_as: list[str] = []
    number, at = int.from_bytes(raw[at : at + 1], "big"), at + 1
    while len(act_as) < number:
        party, at = _text_at(raw, at)
        act_as.append(party)
    kind, value = raw[at : at + 1], int.from_bytes(raw[at + 1 : at + 9], "big")
    is_whole = len(raw) == at + 10 and raw[-1:] == b"\0" and act_as == sorted(act_as)
    if not is_whole or not _is_period_of(record, kind[0], value):
        raise BadRequest("nobody signed for a command with this period")
    check_command(user_id, command_id, tuple(act_as))
    return *decode_request(raw[:end]), CommandIds(user_id, command_id, tuple(act_as), record.submission_id)


def _text_at(raw: bytes, at: int) -> tuple[str, int]:
    """A text after its length in two bytes, and where it ends."""
    end = at + 2 + int.from_bytes(raw[at : at + 2], "big")
    if end > len(raw):
        raise BadRequest("a text goes beyond the end")
    try:
        return raw[at + 2 : end].decode(), end
    except UnicodeDecodeError as error:
        raise BadRequest(str(error)) from None


def _is_period_of(record: RequestRecord, asked: int, value: int) -> bool:
    """Whether a record has the period that was signed for."""
    match asked:
        case 0:
            return value == 0
        case 1:
            return value == record.deduplication_us
        case 2:
            return value < 2**63 and record.deduplication_us == 2**63 - 1
    return False


def _lengths_and(*texts: str) -> bytes:
    return b"".join(len(text.encode()).to_bytes(2, "big") + text.encode() for text in texts)


def _change_id(ids: CommandIds) -> bytes:
    """What identifies a command: user id, command id, and the parties that act."""
    texts = _lengths_and(ids.user_id, ids.command_id, *ids.act_as)
    return sha256(b"notary/command/1" + texts).digest()
