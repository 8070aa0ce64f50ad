"""What today's release writes, one sample of every persisted format, by the path of its golden file."""

from __future__ import annotations

from contextlib import suppress
from hashlib import sha256
from itertools import cycle

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from nacl.signing import SigningKey

from replica.active.signer import P256FileSigner, Signer
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
from replica.notary.genesis import GenesisRecord, encode_genesis
from replica.notary.granters import Claim, Database, Release
from replica.notary.leases import OTHERS_FROM, SIGNS_OF_LIFE_FROM
from replica.notary.merkle import leaf_hash, tree_levels
from replica.notary.position import POSITION_VERSION, Position, begin, encode_position
from replica.notary.receipts import Place, Receipt, make_receipts, receipt_to_document
from replica.notary.records import (
    ActRecord,
    BarrierRecord,
    Record,
    RegistrationRecord,
    RequestRecord,
    SalvageRecord,
    SignOfLifeRecord,
    Undecodable,
    decode_record,
    encode_record,
    request_record,
)
from replica.notary.requests import (
    TIME_MAX_US,
    Request,
    Submission,
    TimeWindow,
    format_state_ref,
    make_request,
    state_ref,
)
from replica.notary.rules import Conflict, Usage
from replica.notary.terms import Terms, encode_canonical, period_us_of
from replica.notary.words import NewWord, encode_word
from tests.worlds.beginning import LEDGER
from tests.worlds.notary_logs import run_product
from tests.worlds.party_logs import told_log

PARTY_KEY = SigningKey(bytes(range(32)))
NOTARY_KEY = SigningKey(bytes(range(32, 64)))
NOTARY_PUBLIC_KEY = bytes(NOTARY_KEY.verify_key)
NOTARY_P256_NUMBER = int.from_bytes(bytes(range(64, 96)), "big")
NOTARY_P256 = P256FileSigner(ec.derive_private_key(NOTARY_P256_NUMBER, ec.SECP256R1()))
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
    return make_request(tx(tx_byte), list(inputs), list(references), window, party, ledger_id=LEDGER)


def submission(request: Request, command_id: str = "command-1") -> Submission:
    """A submission with the party's true signature."""
    return _signed_for(request, Terms("alice", command_id, (PARTY,)))


def _signed_for(request: Request, terms: Terms) -> Submission:
    """A submission that was signed with its terms."""
    raw = encode_canonical(request, terms)
    signature = PARTY_KEY.sign(raw).signature
    texts = (terms.user_id, terms.command_id, terms.act_as, "submission-1")
    return Submission(raw, bytes(PARTY_KEY.verify_key), signature, *texts)


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

BARRIER = BarrierRecord(7, ACTIVATION_1, "R1", Database("postgres", "7564028173911205913", 1), 2, 3)

_OF_2 = (2, ACTIVATION_2)
_OPERATOR = (bytes(PARTY_KEY.verify_key), bytes([0x51]) * 64)

BARRIER_2 = BarrierRecord(9, ACTIVATION_2, "R2", Database("postgres", "7564028173911205913", 1), 2, 3)

_AFTER_1_000 = _signed_for(REQUESTS["window"], Terms("alice", "after", (PARTY,), None, 1_000))
RECORDS = {
    "barrier": BARRIER_2,
    "request": request_record(*_OF_2, 0, 1_000, submission(REQUESTS["one input"]), 604_800_000_000),
    "request-after-an-offset": request_record(*_OF_2, 1, 1_001, _AFTER_1_000, 2**63 - 1),
    "sign-of-life": SignOfLifeRecord(*_OF_2, 2, 1_002),
    "act": ActRecord(*_OF_2, 3, 1_002, "pause", 4, b"body", "zoë", "maintenance", *_OPERATOR),
    "registration": RegistrationRecord(*_OF_2, 4, 1_003, PARTY, bytes([0x61]) * 32, 7, 5, 6, "zoë", *_OPERATOR),
    "salvage": SalvageRecord(*_OF_2, 5, 1_000, 1_010, bytes([0xD3]) * 32),
}

LEASED = Position(
    POSITION_VERSION,
    LEDGER,
    "qPgrcQb1TUm0yHd7vVhW9g",
    1_000_000,
    bytes([0xDD]) * 32,
    BarrierRecord(9, ACTIVATION_2, "R2", Claim(998_990), 2, 3),
    999_000,
    1_700_000_000_000_000,
    ((0, 990), (2**62, 2**62 + 7)),
    999_998,
)
LOG_IDS = ("qPgrcQb1TUm0yHd7vVhW9g", "raft:0b0c5d0e-6a3f-4d52-9b1f-2f4b1d0e6a3f", "x")
RUNNING = Position(
    POSITION_VERSION,
    LEDGER,
    LOG_IDS[0],
    1_000_001,
    bytes([0xDE]) * 32,
    BARRIER_2,
    1_000_000,
    2_000,
    ((0, 1),),
    1_000_001,
)
POSITIONS = {"begin": begin(LOG_IDS[0]), "leased": LEASED, "running": RUNNING}


class _Ed25519Signer:
    """The notary's Ed25519 key of the golden files."""

    blocks, public_key = False, NOTARY_PUBLIC_KEY

    def sign(self, message: bytes) -> bytes:
        return NOTARY_KEY.sign(message).signature


def receipts(count: int, signer: Signer | None = None) -> list[Receipt]:
    """Receipts of a batch; of the fourth it is not known where and when."""
    pairs = [(tx(number), bytes([0xD0 + number]) * 32) for number in range(count)]
    places = [
        None if number == 3 else Place(log_id, 2**40 + number, 7 + number, 1_700_000_000_000_000 + number)
        for number, log_id in zip(range(count), cycle(LOG_IDS), strict=False)
    ]
    signer = signer or _Ed25519Signer()
    return make_receipts(pairs, signer.public_key, signer.sign, places)


def _begun(barrier: BarrierRecord, sequence: int) -> list[bytes]:
    """What a log begins with: its genesis, a barrier, and the registration of the party's key."""
    officer = _OPERATOR[0]
    of = (PARTY, bytes(PARTY_KEY.verify_key), 0, 0, TIME_MAX_US, "zoë", *_OPERATOR)
    registration = RegistrationRecord(2, barrier.activation_id, sequence, 1_000, *of)
    genesis = encode_genesis(GenesisRecord(1, LEDGER, (officer,)))
    return [genesis, encode_record(barrier), encode_record(registration)]


def log() -> list[bytes]:
    """A log with every outcome of a key in force, every reason for being void, two activations, and each step of the
    rules."""
    day_us = 86_400_000_000
    spend, other = REQUESTS["one input"], _request(0x81, (state(0x82),))
    tx_named = tx(0x83).hex()

    def first(sequence: int, request: Request, command: str, stamp_us: int = 1_000) -> bytes:
        sent = submission(request, command)
        return encode_record(request_record(2, ACTIVATION_1, sequence, stamp_us, sent, 0))

    def second(sequence: int, sent: Submission, stamp_us: int, period_us: int = day_us) -> bytes:
        return encode_record(request_record(2, ACTIVATION_2, sequence, stamp_us, sent, period_us))

    terms = Terms("alice", "signed", (PARTY,), 500)
    at_offset = msgspec.structs.replace(terms, command_id="at-offset", deduplication_us=None, ledger_offset=3)
    after_7 = msgspec.structs.replace(terms, command_id="c-1", deduplication_us=None, ledger_offset=3)
    after_14 = msgspec.structs.replace(after_7, ledger_offset=9)  # the completion of the record at 14
    late = TimeWindow(None, 4_000)
    barrier_2 = BarrierRecord(8, ACTIVATION_2, "R2", Database("postgres", "7564028173911205913", 1), 2, 3)
    return [
        *_begun(BARRIER, 4),
        first(0, spend, "c-1"),  # 3: an acceptance
        first(1, spend, "c-1", 1_500),  # again, after its period: a later acceptance of the same command
        first(2, _request(0x66, (state(0x33, 1),)), "c-2"),  # a conflict: no acceptance
        second(0, submission(spend), 2_000),  # of an activation that is not in force yet
        encode_record(barrier_2),  # 7
        first(3, other, "c-3"),  # of the one before
        second(0, submission(spend, "c-1"), 2_000),  # 9: deduplicated, by an acceptance in the earlier activation
        second(1, submission(other, "c-1"), 2_100),  # the command of another transaction
        second(2, submission(other, "c-2"), 2_200),  # 11: a refused command may be used again
        second(3, submission(other, "c-1"), 2_300, 799),  # the newest acceptance is 800 old: notarised again
        second(4, submission(other, "c-1"), 2_400, 100),  # 13: as old as the period
        second(5, submission(other, "c-1"), 2_401, 100),  # and older: an acceptance
        second(6, _signed_for(spend, after_14), 2_500, 2**63 - 1),  # 15: acceptances count after offset 14 only
        second(7, submission(_request(0x84, (state(0x33, 1),)), "c-4"), 2_600),  # a conflict
        second(8, _signed_for(_request(0x84, (state(0x85),)), terms), 2_700, 500),  # 17: signed with its terms
        second(9, _signed_for(_request(0x84, (state(0x85),)), terms), 2_700, 501),  # nobody signed for these
        second(9, _signed_for(_request(0x84, (state(0x85),)), terms), 3_200, 500),  # 19: deduplicated
        second(10, _signed_for(_request(0x86), at_offset), 3_300, 2**63 - 1),  # a ledger offset
        second(11, submission(_request(0x83, (state(0x87),)), tx_named), 3_400),  # 21: no command id was chosen
        second(12, submission(_request(0x83, (state(0x88),)), tx_named), 3_500),  # other content: the id was used
        second(13, submission(_request(0x83, (state(0x88),)), "c-5"), 3_600),  # 23: the same under another command
        second(14, submission(_request(0x89, (state(0x90),), (), late), "c-6"), 3_700),  # inside its window
        second(15, submission(_request(0x91, (state(0x92),), (), late), "c-7"), 4_000),  # 25: outside
        second(16, submission(_request(0x89, (state(0x90),), (), late), "c-7"), 4_100),  # outside, but a repetition
        second(17, submission(_request(0x91, (state(0x92),)), "c-7"), 4_200),  # 27: that was an acceptance of c-7
        second(17, submission(other, "c-8"), 4_300),  # a repeat
        encode_record(SignOfLifeRecord(2, ACTIVATION_2, 18, 9_000)),  # 29
        *[encode_record(_noted(RECORDS[name], 19 + at)) for at, name in enumerate(("act", "registration", "salvage"))],
        second(22, _signed_for(spend, after_7), 4_400, 2**63 - 1),  # 33: c-1 was accepted after 7, for 0x22
        b"\x00",
        encode_record(msgspec.structs.replace(_late(submission(other, "c-9")), activation_id=ACTIVATION_1)),  # 35
        encode_record(msgspec.structs.replace(barrier_2, activation_id=ACTIVATION_1)),  # not higher
        encode_record(barrier_2),  # 37: the one in force, repeated
    ]


def leased_log() -> list[bytes]:
    """Claims to a lease: void ones, by the life of its holder, and one that counts although others wrote."""

    def claimed(activation_id: bytes, epoch: int, witnessed: int) -> BarrierRecord:
        return BarrierRecord(epoch, activation_id, f"R{epoch}", Claim(witnessed), 2, 3)

    def claim(activation_id: bytes, epoch: int, witnessed: int) -> bytes:
        return encode_record(claimed(activation_id, epoch, witnessed))

    def of(activation_id: bytes, sequence: int, number: int) -> bytes:
        sent = submission(_request(number, (state(number),)), f"c-{number}")
        return encode_record(request_record(2, activation_id, sequence, 1_000 + number, sent, 3_600_000_000))

    first, second = ACTIVATION_1, ACTIVATION_2
    return [
        *_begun(claimed(first, 1, -1), OTHERS_FROM + 9),
        encode_record(SignOfLifeRecord(2, first, 0, 9_000)),  # 3: the holder's
        of(first, OTHERS_FROM, 0x41),  # another replica's
        claim(second, 2, 1),  # 5: void, the holder wrote
        encode_record(SignOfLifeRecord(2, first, SIGNS_OF_LIFE_FROM, 9_000)),  # a sign of life
        claim(second, 2, 3),  # 7: void, the holder lives
        of(first, SIGNS_OF_LIFE_FROM - 1, 0x42),  # another replica's
        claim(second, 2, 6),  # 9: in force, although others wrote
        of(first, OTHERS_FROM + 1, 0x43),  # late: logged anew by its sender
        of(second, OTHERS_FROM + 2, 0x43),  # 11
        encode_record(BarrierRecord(3, first, "R1", Release("R2"), 2, 3)),
        of(second, OTHERS_FROM + 3, 0x44),  # 13: of nobody's activation
    ]


def _late(sent: Submission) -> RequestRecord:
    return request_record(2, ACTIVATION_2, 23, 9_000, sent, 0)


def _noted(record: Record, sequence: int) -> Record:
    return msgspec.structs.replace(record, sequence=sequence)


def _log_lines(values: list[bytes]) -> bytes:
    return _lines([{"offset": offset, "value": value.hex()} for offset, value in enumerate(values)])


def _judged_lines(values: list[bytes]) -> bytes:
    """One line a record: what it is, as docs/formats.md names it."""
    run = run_product(list(enumerate(values)))
    rows: dict[int, dict[str, object]] = {offset: {"void": reason} for offset, reason in run.voids.items()}
    for offset, entry in run.counted.items():
        if isinstance(entry, CountedRequest):
            verdict = run.verdicts[offset]
            conflicts = [[c.state.hex(), c.consumed_by_hash.hex(), c.usage.value] for c in verdict.conflicts]
            rows[offset] = {
                "outcome": verdict.outcome.value,
                "judged_us": entry.judged_us,
                "notarised_offset": verdict.notarised_offset,
                "conflicts": conflicts,
            }
        elif isinstance(entry.record, GenesisRecord):
            rows[offset] = {"genesis": True}
        else:
            rows[offset] = {"note": True, "judged_us": entry.judged_us}
    others = ["life" if _is_sign_of_life(value) else "barrier" for value in values]
    return _lines([{"offset": at} | rows.get(at, {other: True}) for at, other in enumerate(others)])


def _is_sign_of_life(value: bytes) -> bool:
    with suppress(Undecodable):
        return isinstance(decode_record(value, 2), SignOfLifeRecord)
    return False


def entry_lines(entries: dict[bytes, bytes]) -> bytes:
    """One line an entry of an index, in key order."""
    return _lines([{"key": key.hex(), "value": value.hex()} for key, value in sorted(entries.items())])


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
                "ledger_id": request.ledger_id.hex(),
                "tx_id": request.tx_id.hex(),
                "inputs": [format_state_ref(ref) for ref in request.inputs],
                "references": [format_state_ref(ref) for ref in request.references],
                "from_us": None if request.window is None else request.window.from_us,
                "until_us": None if request.window is None else request.window.until_us,
                "party": request.party,
                "request": encode_request(request).hex(),
                "content_digest": content_digest(request).hex(),
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
        raw = encode_canonical(request, terms)
        found.append(
            {
                "name": name,
                "ledger_id": request.ledger_id.hex(),
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
    made = receipts(4)
    leaves = [
        leaf_hash(receipt.tx_id, receipt.content_digest, (receipt.place and receipt.place.encoded) or b"")
        for receipt in made
    ]
    return _pretty(
        {
            "notary_seed": bytes(NOTARY_KEY).hex(),
            "notary_public_key": NOTARY_PUBLIC_KEY.hex(),
            "leaves": [leaf.hex() for leaf in leaves],
            "receipts": [receipt_to_document(receipt) for receipt in made],
        }
    )


def _p256_receipt_vectors() -> bytes:
    return _pretty(
        {
            "notary_private_key": NOTARY_P256_NUMBER.to_bytes(32, "big").hex(),
            "notary_public_key": NOTARY_P256.public_key.hex(),
            "receipts": [receipt_to_document(receipt) for receipt in receipts(4, NOTARY_P256)],
        }
    )


def _pretty(value: object) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n"


def _receipt_bytes(receipt: Receipt) -> bytes:
    return msgspec.json.encode(receipt_to_document(receipt))


def samples() -> dict[str, bytes]:
    """Path below this folder -> the bytes that today's release writes."""
    return {
        **{f"records/format-2/{name}.msgpack": encode_record(record) for name, record in RECORDS.items()},
        **{f"positions/version-4/{name}.msgpack": encode_position(position) for name, position in POSITIONS.items()},
        "receipts/version-2/of-one.json": _receipt_bytes(receipts(1)[0]),
        "receipts/version-2/of-five.json": _receipt_bytes(receipts(5)[4]),
        "completions/version-1/conflict-detail.msgpack": msgspec.msgpack.encode(CONFLICTS),
        "history/version-1/history.jsonl": b"".join(map(encode_event, history())),
        "logs/format-2/log.jsonl": _log_lines(log()),
        "logs/format-2/judged-by-rules-3.jsonl": _judged_lines(log()),
        "logs/format-2/index-by-rules-3.jsonl": entry_lines(run_product(list(enumerate(log()))).index),
        "logs/format-2/acceptances.jsonl": entry_lines(run_product(list(enumerate(log()))).acceptances),
        "logs/format-2-lease/log.jsonl": _log_lines(leased_log()),
        "logs/format-2-lease/judged-by-rules-3.jsonl": _judged_lines(leased_log()),
        "logs/format-2-parties/log.jsonl": _log_lines([value for _, value in told_log()]),
        "logs/format-2-parties/judged-by-rules-3.jsonl": _judged_lines([value for _, value in told_log()]),
        "logs/format-2-parties/registrations.jsonl": entry_lines(dict(run_product(told_log()).parties.entries())),
        "words/version-1/pause.msgpack": encode_word(
            NewWord("pause", 1_234, b'{"keeper":"r1","reason":"a disk","paused_at":"2026-05-01T02:00:00Z"}')
        ),
        "vectors/canonical.json": _canonical_vectors(),
        "vectors/canonical_signed.json": _signed_command_vectors(),
        "vectors/change_id.json": _change_id_vectors(),
        "vectors/merkle.json": _merkle_vectors(),
        "vectors/receipts.json": _receipt_vectors(),
        "vectors/receipts_p256.json": _p256_receipt_vectors(),
    }
