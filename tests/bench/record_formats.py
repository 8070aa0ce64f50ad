"""What a request record costs in each serialisation that was considered: encode, decode, bytes.

Run it with `python -m tests.bench.record_formats`. The decision that rests on it, and what each form needs to be read
in Spark, is docs/decisions/0001-record-serialisation.md.
"""

from __future__ import annotations

import io
import os
import platform
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any

import fastavro
import msgspec
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # type: ignore[import-untyped]

from replica.notary.canonical import decode_request, encode_request
from replica.notary.records import RequestRecord, decode_record, encode_record
from replica.notary.requests import Submission, make_request, state_ref

RECORDS = 2_000
ROUNDS = 7  # the fastest one counts: whatever else runs on the machine only ever adds time
INPUTS = 4


@dataclass(frozen=True, slots=True)
class Candidate:
    """One serialisation; `decode` gives every field as a Python value, in whatever type is natural to it."""

    name: str
    encode: Callable[[RequestRecord], bytes]
    decode: Callable[[bytes], object]
    restore: Callable[[Any], RequestRecord]  # what `decode` gave, as our own type: for the check, not timed


def sample_records(count: int, seed: int = 1) -> list[RequestRecord]:
    """Request records as the notary makes them; ids, keys and signatures are random bytes, as real ones look."""
    random = Random(seed)
    activation_id = random.randbytes(16)
    return [_sample(random, activation_id, number) for number in range(count)]


def _sample(random: Random, activation_id: bytes, number: int) -> RequestRecord:
    inputs = [state_ref(random.randbytes(32), random.randrange(8)) for _ in range(INPUTS)]
    request = make_request(random.randbytes(32), inputs, [], None, f"O=Bank {random.randrange(50)},L=London,C=GB")
    submission = Submission(
        encode_request(request),
        random.randbytes(32),
        random.randbytes(64),
        f"user-{random.randrange(200)}",
        f"{random.getrandbits(128):032x}",
        (request.party,),
        f"{random.getrandbits(128):032x}",
    )
    return RequestRecord(1, activation_id, number, 1_790_000_000_000_000 + 40 * number, submission)


# ---- MessagePack and JSON through msgspec ----


def _message_pack() -> Candidate:
    decoder = msgspec.msgpack.Decoder(RequestRecord)
    return Candidate("MessagePack arrays, msgspec", encode_record, decoder.decode, lambda record: record)


def _json() -> Candidate:
    encoder, decoder = msgspec.json.Encoder(), msgspec.json.Decoder(RequestRecord)
    return Candidate("JSON arrays, bytes as base64, msgspec", encoder.encode, decoder.decode, lambda record: record)


# ---- Avro ----

_FIELDS: list[tuple[str, str | dict[str, Any]]] = [
    ("format", "int"),
    ("activation_id", {"type": "fixed", "name": "activation_id_t", "size": 16}),
    ("sequence", "long"),
    ("stamp_us", "long"),
    ("request", "bytes"),
    ("public_key", {"type": "fixed", "name": "public_key_t", "size": 32}),
    ("signature", {"type": "fixed", "name": "signature_t", "size": 64}),
    ("user_id", "string"),
    ("command_id", "string"),
    ("act_as", {"type": "array", "items": "string"}),
    ("submission_id", "string"),
]


def _avro() -> Candidate:
    fields = [{"name": name, "type": kind} for name, kind in _FIELDS]
    schema = fastavro.parse_schema({"type": "record", "name": "request_record", "fields": fields})

    def encode(record: RequestRecord) -> bytes:
        out = io.BytesIO()
        fastavro.schemaless_writer(out, schema, _flat(record))
        return out.getvalue()

    def decode(raw: bytes) -> object:
        return fastavro.schemaless_reader(io.BytesIO(raw), schema, None)

    return Candidate("Avro, schema apart, fastavro", encode, decode, lambda found: _from_flat(**found))


# ---- Protocol Buffers: the descriptor is built here, so that no compiler is needed ----


def _protobuf() -> Candidate:
    kinds = descriptor_pb2.FieldDescriptorProto
    by_type = {"int": kinds.TYPE_UINT32, "long": kinds.TYPE_UINT64, "bytes": kinds.TYPE_BYTES}
    file = descriptor_pb2.FileDescriptorProto(name="request_record.proto", package="bench", syntax="proto3")
    message = file.message_type.add(name="RequestRecord")
    for number, (name, kind) in enumerate(_FIELDS, 1):
        plain = kind if isinstance(kind, str) else "bytes" if kind["type"] == "fixed" else "repeated"
        label = kinds.LABEL_REPEATED if plain == "repeated" else kinds.LABEL_OPTIONAL
        message.field.add(name=name, number=number, type=by_type.get(plain, kinds.TYPE_STRING), label=label)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    kind_of_message: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("bench.RequestRecord"))

    names = [name for name, _ in _FIELDS]

    def decode(raw: bytes) -> object:
        found = kind_of_message.FromString(raw)  # makes Python values of the fields only when they are asked for
        return {name: getattr(found, name) for name in names}

    def encode(record: RequestRecord) -> bytes:
        return bytes(kind_of_message(**_flat(record)).SerializeToString())

    return Candidate("Protocol Buffers, google", encode, decode, lambda found: _from_flat(**found))


# ---- a fixed layout of our own ----

_HEAD = struct.Struct(
    ">BH16sQQ32s64sHHHHH"
)  # kind, format, ..., five lengths; act_as has a count, then its own lengths
_LENGTH = struct.Struct(">H")


def _encode_fixed(record: RequestRecord) -> bytes:
    s = record.submission
    user_id, command_id, submission_id = s.user_id.encode(), s.command_id.encode(), s.submission_id.encode()
    parties = [party.encode() for party in s.act_as]
    lengths = (len(s.request), len(user_id), len(command_id), len(submission_id), len(parties))
    head = (1, record.format, record.activation_id, record.sequence, record.stamp_us, s.public_key, s.signature)
    act_as = [part for party in parties for part in (_LENGTH.pack(len(party)), party)]
    return b"".join((_HEAD.pack(*head, *lengths), s.request, user_id, command_id, submission_id, *act_as))


def _decode_fixed(raw: bytes) -> RequestRecord:
    _, record_format, activation_id, sequence, stamp_us, public_key, signature, *lengths = _HEAD.unpack_from(raw)
    at, parts = _HEAD.size, []
    for length in lengths[:4]:
        parts.append(raw[at : at + length])
        at += length
    act_as = []
    for _ in range(lengths[4]):
        (length,) = _LENGTH.unpack_from(raw, at)
        act_as.append(raw[at + 2 : at + 2 + length].decode())
        at += 2 + length
    request, user_id, command_id, submission_id = parts
    submission = Submission(
        request, public_key, signature, user_id.decode(), command_id.decode(), tuple(act_as), submission_id.decode()
    )
    return RequestRecord(record_format, activation_id, sequence, stamp_us, submission)


def _fixed() -> Candidate:
    return Candidate("fixed layout, struct", _encode_fixed, _decode_fixed, lambda record: record)


def _flat(record: RequestRecord) -> dict[str, Any]:
    return {
        "format": record.format,
        "activation_id": record.activation_id,
        "sequence": record.sequence,
        "stamp_us": record.stamp_us,
        **msgspec.structs.asdict(record.submission),
    }


def _from_flat(**found: Any) -> RequestRecord:
    head = {name: found.pop(name) for name in ("format", "activation_id", "sequence", "stamp_us")}
    return RequestRecord(**head, submission=Submission(**(found | {"act_as": tuple(found["act_as"])})))


CANDIDATES = (_message_pack, _json, _avro, _protobuf, _fixed)


def fastest_us(work: Callable[[Any], object], items: Iterable[object]) -> float:
    """Microseconds an item in the fastest of ROUNDS rounds."""
    todo, best_s = list(items), float("inf")
    for _ in range(ROUNDS):
        began_s = perf_counter()
        for item in todo:
            work(item)
        best_s = min(best_s, perf_counter() - began_s)
    return best_s / len(todo) * 1e6


def main() -> None:
    """Print the table with the conditions it was measured under."""
    records = sample_records(RECORDS)
    libraries = ", ".join(f"{name} {version(name)}" for name in ("msgspec", "fastavro", "protobuf"))
    print(f"request records of {INPUTS} inputs, {RECORDS} of them, fastest of {ROUNDS} rounds, one thread")
    print(f"Python {platform.python_version()}, {libraries}; {_processor()}, load {os.getloadavg()[0]:.1f}\n")
    print("| serialisation | bytes | encode, µs | decode, µs |\n|---|---|---|---|")
    for make in CANDIDATES:
        candidate = make()
        encoded = [candidate.encode(record) for record in records]
        if [candidate.restore(candidate.decode(raw)) for raw in encoded] != records:
            raise AssertionError(f"{candidate.name} does not give the records back")
        size = sum(map(len, encoded)) / len(encoded)
        encode_us, decode_us = fastest_us(candidate.encode, records), fastest_us(candidate.decode, encoded)
        print(f"| {candidate.name} | {size:.0f} | {encode_us:.2f} | {decode_us:.2f} |")
    canonical = [record.submission.request for record in records]
    checked_us = fastest_us(lambda raw: decode_record(raw, 1), map(encode_record, records))
    print(f"\nof these bytes the signed request has {len(canonical[0])}, and the key with the signature 96;")
    print(f"MessagePack with the checks of `decode_record` takes {checked_us:.2f} µs to decode;")
    print(f"taking the request itself apart costs every form {fastest_us(decode_request, canonical):.2f} µs more")


def _processor() -> str:
    models = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{len(models)} x {models[0] if models else 'unknown processor'}"


if __name__ == "__main__":
    main()
