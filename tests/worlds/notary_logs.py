"""Builders of logs for the tests of notary and checker: small worlds, and random logs in which everything happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise
from typing import Any

import msgspec
from hypothesis import strategies as st

from replica.index.interface import NOTHING, Index
from replica.index.memory import MemoryIndex
from replica.index.newest import newest_acceptances, newest_registrations, noted, officers_of
from replica.notary.counted import Counted, CountedNote, CountedRequest
from replica.notary.genesis import NO_LEDGER, GenesisRecord, encode_genesis
from replica.notary.granters import Claim, Database, Release
from replica.notary.leases import OTHERS_FROM, SIGNS_OF_LIFE_FROM
from replica.notary.parties import Officers
from replica.notary.position import Position, begin, decode_position, encode_position
from replica.notary.reading import BarrierInForce, read_records
from replica.notary.records import (
    ActRecord,
    BarrierRecord,
    RegistrationRecord,
    RequestRecord,
    SalvageRecord,
    SignOfLifeRecord,
    encode_record,
    request_record,
)
from replica.notary.requests import Request, Submission, TimeWindow, make_request
from replica.notary.rules import Judged, Verdict, judge, keys_of
from replica.notary.salvage import LOST_TAG
from replica.notary.terms import Terms, encode_canonical
from tests.next_version.release import PRESENT
from tests.worlds.beginning import LEDGER, OTHER_LEDGER

TOPIC = "topic-of-the-tests"
PARTY = "O=Bank A,L=London,C=GB"
CLIENT_KEY = b"k" * 32  # signs each submission of these worlds, and each note unless another does
FOR_EVER = 2**63 - 1  # a deduplication period
Log = list[tuple[int, bytes]]


def tx(number: int) -> bytes:
    """A transaction id."""
    return sha256(b"tx%d" % number).digest()


def state(number: int) -> bytes:
    """A state reference."""
    return sha256(b"state%d" % number).digest() + (number % 3).to_bytes(4, "big")


def activation(number: int) -> bytes:
    """An activation id."""
    return sha256(b"activation%d" % number).digest()[:16]


def request_of(
    tx_number: int,
    inputs: tuple[int, ...] = (),
    references: tuple[int, ...] = (),
    window: TimeWindow | None = None,
    *,
    ledger_id: bytes = LEDGER,
) -> Request:
    """A request over numbered states."""
    parts = [state(i) for i in inputs], [state(r) for r in references]
    return make_request(tx(tx_number), *parts, window, PARTY, ledger_id=ledger_id)


def submission_of(request: Request, command: str = "command", submission: str = "submission") -> Submission:
    """A submission of a request. Readers do not verify its signature: front ends did."""
    raw = encode_canonical(request, Terms("user", command, (PARTY,)))
    return Submission(raw, CLIENT_KEY, b"s" * 64, "user", command, (PARTY,), submission)


def rules_of(format: int) -> int:
    """The version of the rules that goes with a record format, also with one that is not known."""
    return format - PRESENT.records + PRESENT.rules


NO_GRANTERS: list[object] = [
    [],
    5,
    [True],
    [1],
    [1, -2],
    [1, 2**63],
    [1, 5, 5],
    [2, "a b"],
    [2, "é"],
    [2, "x" * 256],
    [0, "postgres", "1"],
    [3, "postgres", "1", 1],
    [4, "a granter of a later format"],
]
"""What no barrier of this format has in the place of its granter."""


@dataclass
class LogMaker:
    """Appends records as one activation after the other would, in the format in force. Offsets are dense from 0."""

    values: list[bytes] = field(default_factory=list)
    activation_id: bytes = activation(0)
    sequence: int = 0
    format: int = PRESENT.records
    submitted: list[tuple[Request, str]] = field(default_factory=list)  # with the command id of each
    registered: Counter[tuple[str, bytes]] = field(default_factory=Counter)

    def genesis(self, *officers: bytes) -> int:
        """Begin the log: with these first officers. Only the first record of a log is one."""
        return self.raw(encode_genesis(GenesisRecord(1, LEDGER, tuple(sorted(officers)))))

    def barrier(
        self, epoch: int, number: int | None = None, *, format: int | None = None, rules: int | None = None
    ) -> int:
        """Open an activation; its number is the epoch's unless given. Returns the record's offset. The format is the
        one before unless given, and the rules are those that go with it."""
        self.activation_id, self.sequence = activation(epoch if number is None else number), 0
        self.format = self.format if format is None else format
        asked = (self.format, rules_of(self.format) if rules is None else rules)
        return self.raw(
            encode_record(BarrierRecord(epoch, self.activation_id, f"R{epoch}", Database("postgres", "1", 1), *asked))
        )

    def claim(self, epoch: int, witnessed: int | Release, *, format: int = PRESENT.records, wins: bool = True) -> int:
        """Claim a lease in a format and its rules. Records go on under the claim's activation id, if it `wins`, or
        under the one before. A release in place of the offset ends it."""
        granter = Claim(witnessed) if isinstance(witnessed, int) else witnessed
        claimant = activation(epoch)
        if wins:
            self.activation_id, self.sequence, self.format = claimant, 0, format
        return self.raw(encode_record(BarrierRecord(epoch, claimant, f"R{epoch}", granter, format, rules_of(format))))

    def barrier_by(self, granter: object, epoch: int = 9, **changed: object) -> int:
        """A barrier with any granter, which a writer of this format does not make; records go on as before."""
        fields = {"replica": "R", "format": self.format, "rules": rules_of(self.format), "site": None, **changed}
        head = 0, epoch, activation(epoch), fields["replica"], granter
        return self.raw(msgspec.msgpack.encode([*head, fields["format"], fields["rules"], fields["site"]]))

    def submit(
        self,
        request: Request,
        *,
        stamp_us: int = 1_000,
        sequence: int | None = None,
        activation_id: bytes | None = None,
        command: str | None = None,
        submission: str = "submission",
        deduplication_us: int = FOR_EVER,
        after: int | None = None,
        terms: Terms | None = None,
    ) -> int:
        """Append a request record of the newest activation, with the next sequence number unless one is given."""
        name = f"command-{len(self.values)}" if command is None else command
        in_force = self.activation_id if activation_id is None else activation_id
        number = self._next() if sequence is None else sequence
        self.submitted.append((request, name))
        sent = submission_of(request, name, submission)
        if terms is None and after is not None:
            terms = Terms(sent.user_id, name, sent.act_as, None, after)
        if terms is not None:
            sent = msgspec.structs.replace(sent, request=encode_canonical(request, terms))
        record = request_record(self.format, in_force, number, stamp_us, sent, deduplication_us)
        return self.raw(encode_record(record))

    def live(self, *, stamp_us: int = 9_000) -> int:
        """Append a sign of life. Its stamp moves no time."""
        return self.raw(encode_record(SignOfLifeRecord(self.format, self.activation_id, self._next(), stamp_us)))

    def act(
        self,
        name: str = "pause",
        *,
        stamp_us: int = 1_000,
        replaces: int = 0,
        body: bytes = b"body",
        by: bytes = CLIENT_KEY,
    ) -> int:
        """Append what an operator did. Readers do not verify its signature."""
        of = (name, replaces, body, "operator", "reason", by, _SIGNATURE)
        return self.raw(encode_record(ActRecord(2, self.activation_id, self._next(), stamp_us, *of)))

    def register(
        self,
        party: str = PARTY,
        *,
        stamp_us: int = 1_000,
        key: bytes = b"p" * 32,
        period_us: tuple[int, int] = (0, FOR_EVER),
        by: bytes = CLIENT_KEY,
        before: int | None = None,
        activation_id: bytes | None = None,
    ) -> int:
        """Append a key of a party. It follows on all that did so and are in force here, unless `before` is given."""
        follows = before is None and activation_id is None
        before = self.registered[party, key] if before is None else before
        self.registered[party, key] += follows
        of = (party, key, before, *period_us, "operator", by, _SIGNATURE)
        wrote = activation_id or self.activation_id
        return self.raw(encode_record(RegistrationRecord(2, wrote, self._next(), stamp_us, *of)))

    def salvage(self, first: int = 0, last: int = 0) -> int:
        """Append the declaration of a lost range."""
        return self.raw(encode_record(SalvageRecord(2, self.activation_id, self._next(), first, last, b"d" * 32)))

    def _next(self) -> int:
        self.sequence += 1
        return self.sequence - 1

    def raw(self, value: bytes) -> int:
        """Append any bytes."""
        self.values.append(value)
        return len(self.values) - 1

    @property
    def log(self) -> Log:
        """The records with their offsets."""
        return list(enumerate(self.values))


_SIGNATURE = b"s" * 64  # of an operator


def made(*officers: bytes, **more: Any) -> LogMaker:
    """The log of a ledger that nobody has led yet: a genesis. `more`: fields of LogMaker."""
    maker = LogMaker(**more)
    maker.genesis(*officers or (CLIENT_KEY,))
    return maker


def begun(*officers: bytes) -> LogMaker:
    """A log as ledgers begin: a genesis, the barrier of epoch 1, and the registration of the key that signs each
    submission. The one who registered it is the first officer, unless others are named."""
    maker = made(*officers)
    maker.barrier(1)
    maker.register(key=CLIENT_KEY, by=officers[0] if officers else CLIENT_KEY)
    return maker


@dataclass
class Run:
    """What the product made of a log: by offset, with the index, the acceptances and the position after it. `parties`:
    an index of registrations and officers."""

    voids: dict[int, str] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    counted: dict[int, Counted] = field(default_factory=dict)
    barriers: list[BarrierInForce] = field(default_factory=list)
    index: dict[bytes, bytes] = field(default_factory=dict)
    acceptances: dict[bytes, bytes] = field(default_factory=dict)
    position: Position = field(default_factory=lambda: begin(TOPIC))
    parties: Index = field(default_factory=MemoryIndex, compare=False)

    @property
    def officers(self) -> Officers:
        return officers_of(self.parties)


IN_FORCE = CLIENT_KEY + b"".join(number.to_bytes(8, "big") for number in (0, FOR_EVER, 1, 0))
"""A registration of a key for ever, at offset 0, as an index has it."""


def judge_knowing(
    index: Mapping[bytes, bytes],
    requests: Sequence[CountedRequest],
    acceptances: Mapping[bytes, bytes] = NOTHING,
    registered: Sequence[bytes | None] | None = None,
) -> Judged:
    """`judge` against states and transactions, and acceptances, each a mapping. Every key is in force, unless
    `registered` has the newest registration of each."""
    keys = [keys_of(entry) for entry in requests]
    known = MemoryIndex()
    known.write(acceptances, begin(TOPIC))
    changes = [entry.change_id for entry in requests]
    newest = newest_acceptances(known, changes, [entry.offset for entry in requests])
    registered = [IN_FORCE] * len(requests) if registered is None else registered
    return judge(requests, keys, [index.get(key) for own in keys for key in own], newest, registered)


def run_product(log: Log, cuts: list[int] | None = None, newer: Run | None = None, parties: Index | None = None) -> Run:
    """Read and judge a log with the product's code in batches that end at `cuts`, the position stored in between.

    `newer`: a run whose indexes are judged against; otherwise the run's own. `parties`: the index of registrations to
    write, one in memory unless given; `newer`'s is past the log already.
    """
    run = Run(parties=newer.parties if newer else parties or MemoryIndex())
    for batch in split(log, cuts or []):
        reading = read_records(run.position, batch)
        notes = [entry for entry in reading.counted if isinstance(entry, CountedNote)]
        of_notes = noted(run.parties, notes, run.position.offset + 1)
        requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
        registered = newest_registrations(run.parties, requests, of_notes)
        known = newer or run
        verdicts, added, accepted = judge_knowing(known.index, requests, known.acceptances, registered)
        run.voids |= {void.offset: void.reason.value for void in reading.voids}
        run.verdicts |= {entry.offset: verdict for entry, verdict in zip(requests, verdicts, strict=True)}
        run.counted |= {entry.offset: entry for entry in reading.counted}
        run.barriers += reading.barriers
        run.index |= added
        run.acceptances |= accepted
        if newer is None:
            run.parties.write(of_notes, reading.position)
        run.position = decode_position(encode_position(reading.position))
    return run


def split(log: Log, cuts: list[int]) -> list[Log]:
    """The log in runs that end at the cuts; runs may be empty."""
    edges = [0, *sorted(min(cut, len(log)) for cut in cuts), len(log)]
    return [log[start:end] for start, end in pairwise(edges)]


# ---- random logs: few ids and states, so that everything collides ----

_windows = st.sampled_from(
    [
        None,
        None,
        None,
        TimeWindow(2, None),
        TimeWindow(7, None),
        TimeWindow(None, 5),
        TimeWindow(None, 9),
        TimeWindow(3, 4),
        TimeWindow(0, 8),
    ]
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    """A request over few states, so that conflicts, retries and reuse of ids are common."""
    states = draw(st.lists(st.integers(0, 5), unique=True, max_size=4))
    cut = draw(st.integers(0, len(states)))
    of = (draw(st.integers(0, 5)), tuple(states[:cut]), tuple(states[cut:]), draw(_windows))
    return request_of(*of, ledger_id=draw(st.sampled_from([LEDGER] * 14 + [OTHER_LEDGER, NO_LEDGER])))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log with everything in it that a reader may meet."""
    maker = begun() if draw(st.integers(0, 9)) else LogMaker()
    length = draw(st.sampled_from([0, 5, 20, 40]))
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=length, max_size=length + 5)):
        step(draw, maker)
    return maker.log


def _good_request(draw: st.DrawFn, maker: LogMaker) -> None:
    request = draw(requests())
    name = draw(st.sampled_from(["c0", "c1", "c2", "c3", request.tx_id.hex(), request.tx_id.hex().upper()]))
    _submit(draw, maker, request, command=name)


def _reordered_request(draw: st.DrawFn, maker: LogMaker) -> None:
    _submit(draw, maker, draw(requests()), sequence=draw(st.integers(0, 12)))


def _submit(draw: st.DrawFn, maker: LogMaker, request: Request, **more: Any) -> None:
    stamp_us = draw(st.integers(0, 10))
    more["deduplication_us"] = draw(st.sampled_from([0, 1, 3, FOR_EVER, FOR_EVER]))
    after = draw(st.integers(max(0, len(maker.values) - 8), len(maker.values) + 2) | st.just(FOR_EVER))
    more["terms"] = draw(st.none() | st.none() | st.sampled_from(_terms_of(more, after)))
    maker.submit(request, stamp_us=stamp_us, **more)


def _terms_of(more: dict[str, Any], after: int) -> list[Terms]:
    """What may have been signed for a record with this period; and another one, which may not."""
    command, period_us = more.get("command", "c0"), more["deduplication_us"]
    right = Terms("user", command, (PARTY,), period_us)
    none, at_offset = (msgspec.structs.replace(right, deduplication_us=None, ledger_offset=at) for at in (None, after))
    other = [msgspec.structs.replace(right, **{name: "x"}) for name in ("user_id", "command_id")]
    other += [msgspec.structs.replace(right, act_as=(PARTY, "P")), msgspec.structs.replace(right, deduplication_us=2)]
    return [right, none, at_offset, right, none, at_offset, *other]


def _others_record(draw: st.DrawFn, maker: LogMaker) -> None:
    """Of a replica that writes under another's activation; and numbers at the edges of what shows the holder's life."""
    edges = [OTHERS_FROM - 1, OTHERS_FROM, OTHERS_FROM + 1, SIGNS_OF_LIFE_FROM - 1, SIGNS_OF_LIFE_FROM]
    _submit(draw, maker, draw(requests()), sequence=draw(st.sampled_from(edges)))


def _late_request(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.submit(draw(requests()), activation_id=activation(draw(st.integers(0, 6))))


def _barrier(draw: st.DrawFn, maker: LogMaker) -> None:
    epoch = draw(st.integers(1, 5))
    maker.barrier(epoch, draw(st.sampled_from([epoch, epoch, 6])))


def _next_barrier(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.barrier(len(maker.values) + 6)


def _claim(draw: st.DrawFn, maker: LogMaker) -> None:
    """One that saw all or nearly all; a release; or what no granter is."""
    newest = len(maker.values) - 1
    near = st.integers(max(-1, newest - 3), newest)
    wins, epoch = draw(st.booleans()), draw(st.sampled_from([newest + 7, newest + 7, 4]))
    if draw(st.integers(0, 9)) == 0:
        maker.barrier_by(draw(st.sampled_from(NO_GRANTERS)), epoch)
    else:
        maker.claim(epoch, draw(near | near | near | near | st.just(Release("R1"))), wins=wins)


def _again(draw: st.DrawFn, maker: LogMaker) -> None:
    """An earlier submission once more, by its caller: another record, with terms of its own."""
    if maker.submitted:
        request, command = draw(st.sampled_from(maker.submitted[-6:]))
        _submit(draw, maker, request if draw(st.integers(0, 3)) else draw(requests()), command=command)


def _note(draw: st.DrawFn, maker: LogMaker) -> None:
    stamp_us = draw(st.sampled_from([5, 900]))  # which moves no time
    match draw(st.integers(0, 2)):
        case 0:
            maker.act(draw(st.sampled_from(["pause", "", "a\nb", "x" * 513])), stamp_us=stamp_us)
        case 1:
            maker.register(draw(st.sampled_from([PARTY, "", "ü" * 257])), stamp_us=stamp_us)
        case _:
            maker.salvage(draw(st.integers(0, 3)), draw(st.integers(0, 3)))


def _repeat(draw: st.DrawFn, maker: LogMaker) -> None:
    if maker.values:
        maker.raw(draw(st.sampled_from(maker.values[-6:])))


def _sign_of_life(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.live()


def strange_bytes(max_size: int) -> st.SearchStrategy[bytes]:
    """Bytes that are no record. None begins as a lost record does: every reader stops at one that is cut."""
    return st.binary(max_size=max_size).filter(lambda value: not value.startswith(LOST_TAG))


def _broken(draw: st.DrawFn, maker: LogMaker) -> None:
    submission = submission_of(request_of(1, (1, 2)))
    good = request_record(2, maker.activation_id, 40, 5, submission, 3)
    value = encode_record(good)
    swapped = (
        submission.request[:70] + submission.request[106:142] + submission.request[70:106] + submission.request[142:]
    )
    broken = [
        b"",
        b"\xc0",
        value[:-1],
        value + b"\x00",
        msgspec.msgpack.encode([*msgspec.msgpack.decode(value), 7]),
        msgspec.msgpack.encode(msgspec.msgpack.decode(value)[:-1]),
        b"\x97" + value[1:] + b"\x91" * 5_000 + b"\x90",
        encode_record(msgspec.structs.replace(good, format=1)),
        encode_record(msgspec.structs.replace(good, sequence=-1)),
        encode_record(msgspec.structs.replace(good, stamp_us=2**63)),
        _with(good, request=swapped),
        _with(good, request=submission.request + b"\x00"),
        _with(good, submission_id="nul\x00"),
        _with(good, disclosure_root=b"r" * 32),
        _with(good, openings=(b"",)),
        _with(good, consents=(b"",)),
        encode_record(BarrierRecord(0, b"z" * 16, "R", Database("postgres", "1", 1), 2, 3)),
        encode_record(BarrierRecord(99, b"short", "R", Database("postgres", "1", 1), 2, 3)),
        encode_record(msgspec.structs.replace(good, deduplication_us=-1)),
        encode_record(msgspec.structs.replace(good, deduplication_us=2**63)),
        msgspec.msgpack.encode(msgspec.msgpack.decode(value)[:-2]),
    ]
    maker.raw(draw(st.sampled_from(broken) | strange_bytes(40)))


def _with(record: RequestRecord, **changes: object) -> bytes:
    return encode_record(msgspec.structs.replace(record, **changes))


_STEPS = [
    *[_good_request] * 12,
    *[_reordered_request] * 2,
    _late_request,
    _barrier,
    _next_barrier,
    *[_repeat] * 2,
    _sign_of_life,
    _broken,
    *[_again] * 8,
    *[_note] * 2,
    *[_claim] * 6,
    *[_others_record] * 2,
]
