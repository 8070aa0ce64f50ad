"""What today's release writes, one sample of every persisted format, by the path of its golden file."""

from __future__ import annotations

from hashlib import sha256

import msgspec
from nacl.signing import SigningKey

from replica.checker.history import (
    CommandIds,
    ConflictText,
    Content,
    Event,
    Invoke,
    Ok,
    Refused,
    Unknown,
    encode_event,
)
from replica.notary.canonical import change_id, content_digest, encode_request
from replica.notary.counted import CountedRequest
from replica.notary.merkle import leaf_hash, tree_levels
from replica.notary.position import LeasedPosition, Position, begin, encode_position
from replica.notary.reading import Reading, read_records
from replica.notary.receipts import Receipt, make_receipts, receipt_to_document
from replica.notary.records import (
    ActRecord,
    BarrierRecord,
    RegistrationRecord,
    RequestRecord,
    RequestRecordV2,
    SalvageRecord,
    SettledCommand,
    SettlementRecord,
    encode_record,
)
from replica.notary.requests import Request, Submission, TimeWindow, format_state_ref, make_request, state_ref
from replica.notary.rules import Conflict, Usage, Verdict, judge, keys_of
from replica.notary.terms import Terms, encode_request_2, period_us_of

PARTY_KEY = SigningKey(bytes(range(32)))
NOTARY_KEY = SigningKey(bytes(range(32, 64)))
NOTARY_PUBLIC_KEY = bytes(NOTARY_KEY.verify_key)
PARTY = "O=Bank A,L=London,C=GB"
ACTIVATION_1, ACTIVATION_2 = bytes([0xA1]) * 16, bytes([0xA2]) * 16


def tx(byte: int) -> bytes:
    """A transaction id that is easy to recognise in a hexadecimal dump."""
    return bytes([byte]) * 32


def state(byte: int, index: int = 0) -> bytes:
    """A state reference that is easy to recognise in a hexadecimal dump."""
    return state_ref(bytes([byte]) * 32, index)


def _request(
    tx_byte: int,
    inputs: tuple[bytes, ...] = (),
    references: tuple[bytes, ...] = (),
    window: TimeWindow | None = None,
    party: str = PARTY,
) -> Request:
    return make_request(tx(tx_byte), list(inputs), list(references), window, party)


def submission(request: Request, command_id: str = "command-1") -> Submission:
    """A submission with the party's true signature."""
    raw = encode_request(request)
    signature = PARTY_KEY.sign(raw).signature
    return Submission(raw, bytes(PARTY_KEY.verify_key), signature, "alice", command_id, (PARTY,), "submission-1")


REQUESTS = {
    "nothing consumed": _request(0x11),
    "one input": _request(0x22, (state(0x33, 1),)),
    "two inputs, out of order": _request(0x22, (state(0x44, 1), state(0x33, 258))),
    "a reference": _request(0x22, (state(0x33),), (state(0x55, 2**32 - 1),)),
    "window from": _request(0x22, (), (), TimeWindow(1_000_000, None)),
    "window until": _request(0x22, (), (), TimeWindow(None, 2_000_000)),
    "window from the epoch on": _request(0x22, (), (), TimeWindow(0, None)),
    "window": _request(0x22, (state(0x33),), (state(0x44),), TimeWindow(1_700_000_000_000_000, 1_700_000_060_000_000)),
    "a party that is not ASCII": _request(0x22, party="O=Zürich Bank,L=Zürich,C=CH"),
}

COMMANDS = [
    ("alice", "command-1", (PARTY,)),
    ("alice", "command-1", ("O=B", "O=A")),
    ("alice", "command-1", ("O=A", "O=B")),
    ("zoë", "", ()),
]

SIGNED_COMMANDS = {  # name: request, user id, command id, act_as, period in seconds, ledger offset
    "no period": ("nothing consumed", "alice", "command-1", (PARTY,), None, None),
    "a minute": ("one input", "alice", "command-1", (PARTY,), 60.0, None),
    "a tenth of a second": ("window", "alice", "command-1", (PARTY,), 0.1, None),
    "half a microsecond is none": ("one input", "alice", "command-1", (PARTY,), 0.0000005, None),
    "one and a half microseconds are two": ("one input", "alice", "command-1", (PARTY,), 0.0000015, None),
    "two and a half microseconds are two": ("one input", "alice", "command-1", (PARTY,), 0.0000025, None),
    "the longest period": ("one input", "alice", "command-1", (PARTY,), 3_162_240_000.0, None),
    "no period at all": ("one input", "alice", "command-1", (PARTY,), 0.0, None),
    "the first ledger offset": ("one input", "alice", "command-1", (PARTY,), None, 0),
    "a ledger offset": ("a reference", "alice", "command-1", (PARTY,), None, 2**53 - 1),
    "texts that are not ASCII": ("window", "zoë", "日", ("O=\U0001f600", "O=\uff5e", "O=A"), 3_600.0, None),
}

BARRIER = BarrierRecord(7, ACTIVATION_1, "R1", "postgres:7564028173911205913:1", 1, 1)

RECORDS = {
    "barrier": BARRIER,
    "request": RequestRecord(1, ACTIVATION_1, 0, 1_700_000_000_000_000, submission(REQUESTS["one input"])),
    "request-window": RequestRecord(1, ACTIVATION_1, 300, 1_700_000_000_000_001, submission(REQUESTS["window"])),
    "settlement": SettlementRecord(
        1,
        ACTIVATION_1,
        2**40,
        (
            SettledCommand("alice", "command-1", (PARTY,), "submission-1", tx(0x11), bytes([0xD1]) * 32),
            SettledCommand("zoë", "command-2", ("O=A", "O=B"), "submission-2", tx(0x22), bytes([0xD2]) * 32),
        ),
    ),
}

_OF_2 = (2, ACTIVATION_2)
_OPERATOR = (bytes(PARTY_KEY.verify_key), bytes([0x51]) * 64)

RECORDS_2 = {
    "barrier": BarrierRecord(9, ACTIVATION_2, "R2", "postgres:7564028173911205913:1", 2, 2),
    "request": RequestRecordV2(*_OF_2, 0, 1_000, submission(REQUESTS["one input"]), 604_800_000_000, -1),
    "request-after-an-offset": RequestRecordV2(*_OF_2, 1, 1_001, submission(REQUESTS["window"]), 2**63 - 1, 1_000),
    "settlement-of-nothing": SettlementRecord(*_OF_2, 2, ()),
    "act": ActRecord(*_OF_2, 3, 1_002, "pause", 4, b"body", "zoë", "maintenance", *_OPERATOR),
    "registration": RegistrationRecord(*_OF_2, 4, 1_003, PARTY, bytes([0x61]) * 32, 5, 6, "zoë", *_OPERATOR),
    "salvage": SalvageRecord(*_OF_2, 5, 1_000, 1_010, bytes([0xD3]) * 32),
}

POSITIONS = {
    "begin": begin("qPgrcQb1TUm0yHd7vVhW9g"),
    "running": Position(
        1,
        "qPgrcQb1TUm0yHd7vVhW9g",
        1_000_000,
        bytes([0xDD]) * 32,
        BARRIER,
        999_000,
        1_700_000_000_000_000,
        ((0, 990), (995, 996)),
    ),
}

LEASED = LeasedPosition(
    3,
    "qPgrcQb1TUm0yHd7vVhW9g",
    1_000_000,
    bytes([0xDD]) * 32,
    BarrierRecord(9, ACTIVATION_2, "R2", "lease:qPgrcQb1TUm0yHd7vVhW9g:998990", 2, 2),
    999_000,
    1_700_000_000_000_000,
    ((0, 990), (2**62, 2**62 + 7)),
    999_998,
)


def receipts(count: int) -> list[Receipt]:
    """Receipts of a batch."""
    pairs = [(tx(number), bytes([0xD0 + number]) * 32) for number in range(count)]
    return make_receipts(pairs, NOTARY_PUBLIC_KEY, lambda message: NOTARY_KEY.sign(message).signature)


def log() -> list[bytes]:
    """A log with every outcome, every reason for being void, and two activations."""

    def record(activation_id: bytes, sequence: int, stamp_us: int, request: Request) -> bytes:
        return encode_record(RequestRecord(1, activation_id, sequence, stamp_us, submission(request)))

    spend = record(ACTIVATION_1, 0, 1_000, REQUESTS["one input"])
    return [
        encode_record(BARRIER),
        spend,
        spend,  # a repeat
        record(ACTIVATION_1, 1, 1_001, _request(0x66, (state(0x33, 1), state(0x77)), (state(0x78),))),  # conflict
        record(ACTIVATION_1, 2, 1_002, _request(0x22, (state(0x79),))),  # the id was used
        record(ACTIVATION_1, 3, 5_000, _request(0x67, (state(0x77),), (), TimeWindow(None, 5_000))),  # window closed
        record(
            ACTIVATION_1, 4, 4_000, _request(0x68, (state(0x77),), (), TimeWindow(5_000, None))
        ),  # the highest stamp
        encode_record(BarrierRecord(7, ACTIVATION_2, "R2", "postgres:7564028173911205913:1", 1, 1)),  # not higher
        encode_record(BARRIER),  # the one in force, repeated
        encode_record(BarrierRecord(8, ACTIVATION_2, "R2", "postgres:7564028173911205913:1", 1, 1)),
        record(ACTIVATION_1, 5, 9_000, _request(0x69, (state(0x80),))),  # late
        b"",
        encode_record(SettlementRecord(1, ACTIVATION_2, 0, RECORDS["settlement"].commands)),  # type: ignore[union-attr]
        record(ACTIVATION_2, 1, 5_001, REQUESTS["one input"]),  # the same success
        record(ACTIVATION_2, 2, 5_002, _request(0x6A, (), (state(0x77),))),  # a reference was spent
    ]


def judged() -> tuple[Reading, list[Verdict], dict[bytes, bytes]]:
    """What today's release makes of the log."""
    reading = read_records(begin("topic"), enumerate(log()))
    requests = [entry for entry in reading.counted if isinstance(entry, CountedRequest)]
    keys = [keys_of(entry) for entry in requests]
    verdicts, index, _ = judge(requests, keys, [None] * sum(map(len, keys)))
    return reading, verdicts, index


def _log_lines() -> bytes:
    return _lines([{"offset": offset, "value": value.hex()} for offset, value in enumerate(log())])


def _judged_lines() -> bytes:
    """One line a record: what it is, as docs/formats.md names it."""
    reading, verdicts, _ = judged()
    rows: dict[int, dict[str, object]] = {void.offset: {"void": void.reason.value} for void in reading.voids}
    of_requests = iter(verdicts)
    for entry in reading.counted:
        if isinstance(entry, CountedRequest):
            verdict = next(of_requests)
            conflicts = [[c.state.hex(), c.consumed_by_hash.hex(), c.usage.value] for c in verdict.conflicts]
            rows[entry.offset] = {
                "outcome": verdict.outcome.value,
                "judged_us": entry.judged_us,
                "notarised_offset": verdict.notarised_offset,
                "conflicts": conflicts,
            }
        else:
            rows[entry.offset] = {"settles": len(entry.record.commands), "judged_us": entry.judged_us}
    return _lines([{"offset": at} | rows.get(at, {"barrier": True}) for at in range(len(log()))])


def _index_lines() -> bytes:
    entries = sorted(judged()[2].items())
    return _lines([{"key": key.hex(), "value": value.hex()} for key, value in entries])


def _lines(rows: list[dict[str, object]]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


CONFLICTS = (
    Conflict(state(0x33, 1), sha256(tx(0x22)).digest(), Usage.INPUT),
    Conflict(state(0x44), sha256(tx(0x23)).digest(), Usage.REFERENCE),
)


def history() -> list[Event]:
    """An event of each type, with and without what may be left out."""
    request = REQUESTS["window"]
    digest = content_digest(request).hex()
    inputs, references = [tuple(map(format_state_ref, refs)) for refs in (request.inputs, request.references)]
    content = Content(PARTY, inputs, references, 1_700_000_000_000_000, 1_700_000_060_000_000)
    command = CommandIds("alice", "command-1", (PARTY,), "submission-1")
    document = receipt_to_document(receipts(2)[0])
    conflicts = (ConflictText(inputs[0], sha256(tx(0x11)).hexdigest(), "input"),)
    return [
        Invoke("client-1", 0, 10, request.tx_id.hex(), content, command),
        Ok("client-1", 0, 20, digest, 5, 5, False, document, 7, "R1"),
        Invoke("client-1", 1, 30, tx(0x11).hex(), Content(PARTY)),
        Unknown("client-1", 1, 40, "OUTCOME_UNKNOWN"),
        Invoke("client-1", 2, 50, request.tx_id.hex()),
        Ok("client-1", 2, 60, digest, 5),
        Invoke("client-1", 3, 70, tx(0x66).hex(), content, command),
        Refused("client-1", 3, 80, "STATE_CONFLICT", 6, conflicts, None, 7, "R1"),
        Invoke("client-1", 4, 90, tx(0x67).hex(), content, command),
        Refused("client-1", 4, 95, "TIME_WINDOW_CLOSED", 7, judged_us=5_000),
    ]


def _canonical_vectors() -> bytes:
    return _pretty(
        [
            {
                "name": name,
                "tx_id": request.tx_id.hex(),
                "inputs": [format_state_ref(ref) for ref in request.inputs],
                "references": [format_state_ref(ref) for ref in request.references],
                "from_us": None if request.window is None else request.window.from_us,
                "until_us": None if request.window is None else request.window.until_us,
                "party": request.party,
                "canonical": encode_request(request).hex(),
                "content_digest": content_digest(request).hex(),
                "party_seed": bytes(PARTY_KEY).hex(),
                "party_public_key": bytes(PARTY_KEY.verify_key).hex(),
                "signature": PARTY_KEY.sign(encode_request(request)).signature.hex(),
            }
            for name, request in REQUESTS.items()
        ]
    )


def _signed_command_vectors() -> bytes:
    found: list[dict[str, object]] = []
    for name, (of, user_id, command_id, act_as, duration_s, after_offset) in SIGNED_COMMANDS.items():
        request = REQUESTS[of]
        duration_us = None if duration_s is None else period_us_of(duration_s)
        terms = Terms(user_id, command_id, tuple(sorted(act_as)), duration_us, after_offset)
        raw = encode_request_2(request, terms)
        found.append(
            {
                "name": name,
                "tx_id": request.tx_id.hex(),
                "inputs": [format_state_ref(ref) for ref in request.inputs],
                "references": [format_state_ref(ref) for ref in request.references],
                "from_us": None if request.window is None else request.window.from_us,
                "until_us": None if request.window is None else request.window.until_us,
                "party": request.party,
                "user_id": user_id,
                "command_id": command_id,
                "act_as": act_as,
                "duration_s": duration_s,
                "after_offset": after_offset,
                "canonical": raw.hex(),
                "content_digest": content_digest(request).hex(),
                "party_seed": bytes(PARTY_KEY).hex(),
                "party_public_key": bytes(PARTY_KEY.verify_key).hex(),
                "signature": PARTY_KEY.sign(raw).signature.hex(),
            }
        )
    return _pretty(found)


def _change_id_vectors() -> bytes:
    return _pretty(
        [
            {
                "user_id": user,
                "command_id": command,
                "act_as": act_as,
                "change_id": change_id(user, command, act_as).hex(),
            }
            for user, command, act_as in COMMANDS
        ]
    )


def _merkle_vectors() -> bytes:
    leaves = [leaf_hash(tx(number), bytes([0xD0 + number]) * 32) for number in range(9)]
    roots = {str(count): tree_levels(leaves[:count])[-1][0].hex() for count in range(1, 10)}
    return _pretty({"leaves": [leaf.hex() for leaf in leaves], "root_of_the_first": roots})


def _receipt_vectors() -> bytes:
    return _pretty(
        {
            "notary_seed": bytes(NOTARY_KEY).hex(),
            "notary_public_key": NOTARY_PUBLIC_KEY.hex(),
            "receipts": [receipt_to_document(receipt) for receipt in receipts(3)],
        }
    )


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _receipt_bytes(receipt: Receipt) -> bytes:
    return msgspec.json.encode(receipt_to_document(receipt))


def samples() -> dict[str, bytes]:
    """Path below this folder -> the bytes that today's release writes."""
    return {
        **{f"records/format-1/{name}.msgpack": encode_record(record) for name, record in RECORDS.items()},
        **{f"records/format-2/{name}.msgpack": encode_record(record) for name, record in RECORDS_2.items()},
        **{f"positions/version-1/{name}.msgpack": encode_position(position) for name, position in POSITIONS.items()},
        "positions/version-3/leased.msgpack": encode_position(LEASED),
        "receipts/version-1/of-one.json": _receipt_bytes(receipts(1)[0]),
        "receipts/version-1/of-five.json": _receipt_bytes(receipts(5)[4]),
        "completions/version-1/conflict-detail.msgpack": msgspec.msgpack.encode(CONFLICTS),
        "history/version-1/history.jsonl": b"".join(map(encode_event, history())),
        "logs/format-1/log.jsonl": _log_lines(),
        "logs/format-1/judged-by-rules-1.jsonl": _judged_lines(),
        "logs/format-1/index-by-rules-1.jsonl": _index_lines(),
        "vectors/canonical.json": _canonical_vectors(),
        "vectors/canonical_2_signed.json": _signed_command_vectors(),
        "vectors/change_id.json": _change_id_vectors(),
        "vectors/merkle.json": _merkle_vectors(),
        "vectors/receipts.json": _receipt_vectors(),
    }
