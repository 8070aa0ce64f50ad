"""Builders of logs for the tests of notary and checker: small worlds, and random logs in which everything happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import pairwise

import msgspec
from hypothesis import strategies as st

from replica.notary.canonical import encode_request
from replica.notary.counted import Counted, CountedRequest
from replica.notary.position import Position, begin, decode_position, encode_position
from replica.notary.reading import read_records
from replica.notary.records import (
    BarrierRecord,
    RequestRecord,
    SettledCommand,
    SettlementRecord,
    encode_record,
)
from replica.notary.requests import Request, Submission, TimeWindow, make_request
from replica.notary.rules import Verdict, judge, keys_of

TOPIC = "topic-of-the-tests"
PARTY = "O=Bank A,L=London,C=GB"
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
    tx_number: int, inputs: tuple[int, ...] = (), references: tuple[int, ...] = (), window: TimeWindow | None = None
) -> Request:
    """A request over numbered states."""
    return make_request(tx(tx_number), [state(i) for i in inputs], [state(r) for r in references], window, PARTY)


def submission_of(request: Request, command: str = "command", submission: str = "submission") -> Submission:
    """A submission of a request. Readers do not verify its signature: front ends did."""
    return Submission(encode_request(request), b"k" * 32, b"s" * 64, "user", command, (PARTY,), submission)


@dataclass
class LogMaker:
    """Appends records as one activation after the other would. Offsets are dense from 0."""

    values: list[bytes] = field(default_factory=list)
    activation_id: bytes = activation(0)
    sequence: int = 0

    def barrier(self, epoch: int, number: int | None = None, *, format: int = 1, rules: int = 1) -> int:
        """Open an activation; its number is the epoch's unless given. Returns the record's offset."""
        self.activation_id, self.sequence = activation(epoch if number is None else number), 0
        record = BarrierRecord(epoch, self.activation_id, f"R{epoch}", "postgres:1:1", format, rules)
        return self.raw(encode_record(record))

    def submit(
        self,
        request: Request,
        *,
        stamp_us: int = 1_000,
        sequence: int | None = None,
        activation_id: bytes | None = None,
        command: str | None = None,
        submission: str = "submission",
    ) -> int:
        """Append a request record of the newest activation, with the next sequence number unless another is given."""
        if sequence is None:
            sequence, self.sequence = self.sequence, self.sequence + 1
        name = f"command-{len(self.values)}" if command is None else command
        return self.raw(
            encode_record(
                RequestRecord(
                    1,
                    self.activation_id if activation_id is None else activation_id,
                    sequence,
                    stamp_us,
                    submission_of(request, name, submission),
                )
            )
        )

    def settle(self, *commands: SettledCommand) -> int:
        """Append a settlement record."""
        sequence, self.sequence = self.sequence, self.sequence + 1
        return self.raw(encode_record(SettlementRecord(1, self.activation_id, sequence, commands)))

    def raw(self, value: bytes) -> int:
        """Append any bytes."""
        self.values.append(value)
        return len(self.values) - 1

    @property
    def log(self) -> Log:
        """The records with their offsets."""
        return list(enumerate(self.values))


def settled(number: int, command: str) -> SettledCommand:
    """A settled command."""
    return SettledCommand("user", command, (PARTY,), "submission", tx(number), b"d" * 32)


@dataclass
class Run:
    """What the product made of a log: by offset, with the index and the position behind it."""

    voids: dict[int, str] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    counted: dict[int, Counted] = field(default_factory=dict)
    barriers: list[BarrierRecord] = field(default_factory=list)
    index: dict[bytes, bytes] = field(default_factory=dict)
    position: Position = field(default_factory=lambda: begin(TOPIC))


def judge_knowing(
    index: Mapping[bytes, bytes], requests: Sequence[CountedRequest]
) -> tuple[list[Verdict], dict[bytes, bytes]]:
    """`judge` against an index that is a mapping."""
    keys = [keys_of(entry) for entry in requests]
    verdicts, added, _ = judge(requests, keys, [index.get(key) for own in keys for key in own])
    return verdicts, added


def run_product(log: Log, cuts: list[int] | None = None, known: dict[bytes, bytes] | None = None) -> Run:
    """Read and judge a log with the product's code in batches that end at `cuts`, the position stored in between.

    `known` is a newer index to judge against; otherwise the run's own.
    """
    run = Run()
    for batch in split(log, cuts or []):
        reading = read_records(run.position, batch)
        requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
        index = run.index if known is None else known
        verdicts, added = judge_knowing(index, requests)
        run.voids |= {void.offset: void.reason.value for void in reading.voids}
        run.verdicts |= {entry.offset: verdict for entry, verdict in zip(requests, verdicts, strict=True)}
        run.counted |= {entry.offset: entry for entry in reading.counted}
        run.barriers += reading.barriers
        run.index |= added
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
    return request_of(draw(st.integers(0, 5)), tuple(states[:cut]), tuple(states[cut:]), draw(_windows))


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """A log with everything in it that a reader may meet."""
    maker = LogMaker()
    if draw(st.integers(0, 9)):
        maker.barrier(1)
    length = draw(st.sampled_from([0, 5, 20, 40]))
    for step in draw(st.lists(st.sampled_from(_STEPS), min_size=length, max_size=length + 5)):
        step(draw, maker)
    return maker.log


def _good_request(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.submit(draw(requests()), stamp_us=draw(st.integers(0, 10)), command=f"c{draw(st.integers(0, 3))}")


def _reordered_request(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.submit(draw(requests()), stamp_us=draw(st.integers(0, 10)), sequence=draw(st.integers(0, 12)))


def _late_request(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.submit(draw(requests()), activation_id=activation(draw(st.integers(0, 6))))


def _barrier(draw: st.DrawFn, maker: LogMaker) -> None:
    epoch = draw(st.integers(1, 5))
    maker.barrier(epoch, draw(st.sampled_from([epoch, epoch, 6])))


def _next_barrier(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.barrier(len(maker.values) + 6)


def _repeat(draw: st.DrawFn, maker: LogMaker) -> None:
    if maker.values:
        maker.raw(draw(st.sampled_from(maker.values[-6:])))


def _settlement(draw: st.DrawFn, maker: LogMaker) -> None:
    maker.settle(*[settled(number, f"c{number}") for number in draw(st.lists(st.integers(0, 3), max_size=2))])


def _broken(draw: st.DrawFn, maker: LogMaker) -> None:
    submission = submission_of(request_of(1, (1, 2)))
    good = RequestRecord(1, maker.activation_id, 40, 5, submission)
    value = encode_record(good)
    swapped = (
        submission.request[:52] + submission.request[88:124] + submission.request[52:88] + submission.request[124:]
    )
    maker.raw(
        draw(
            st.sampled_from(
                [
                    b"",
                    b"\xc0",
                    value[:-1],
                    value + b"\x00",
                    msgspec.msgpack.encode([*msgspec.msgpack.decode(value), 7]),
                    b"\x97" + value[1:] + b"\x91" * 5_000 + b"\x90",
                    encode_record(msgspec.structs.replace(good, format=2)),
                    encode_record(msgspec.structs.replace(good, sequence=-1)),
                    encode_record(msgspec.structs.replace(good, stamp_us=2**63)),
                    _with(good, request=swapped),
                    _with(good, request=submission.request + b"\x00"),
                    _with(good, command_id="nul\x00"),
                    _with(good, act_as=()),
                    encode_record(BarrierRecord(0, b"z" * 16, "R", "postgres:1:1", 1, 1)),
                    encode_record(BarrierRecord(99, b"short", "R", "postgres:1:1", 1, 1)),
                ]
            )
            | st.binary(max_size=40)
        )
    )


def _with(record: RequestRecord, **changes: object) -> bytes:
    submission = msgspec.structs.replace(record.submission, **changes)
    return encode_record(msgspec.structs.replace(record, submission=submission))


_STEPS = [
    *[_good_request] * 12,
    *[_reordered_request] * 2,
    _late_request,
    _barrier,
    _next_barrier,
    *[_repeat] * 2,
    _settlement,
    _broken,
]
