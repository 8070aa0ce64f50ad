"""A log whose requests are truly signed, and what a verifier needs of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from nacl.signing import SigningKey

from replica.notary.canonical import encode_request
from replica.notary.records import BarrierRecord, RequestRecord, encode_record
from replica.notary.requests import Request, Submission

_PARTY = "O=Party 000,L=London,C=GB"
_ACTIVATION = bytes(range(16))
_FILES = 16


@dataclass(frozen=True, slots=True)
class SignedLog:
    """The log's files, and (public key, message, signature) of each request."""

    paths: list[Path]
    checks: list[tuple[bytes, bytes, bytes]]


def write_signed_log(folder: Path, records: int) -> SignedLog:
    """Write a log of so many requests, behind a barrier, in files of like length: one task each."""
    folder.mkdir(parents=True)
    key = SigningKey(bytes(range(32)))
    public_key = bytes(key.verify_key)
    values = [encode_record(BarrierRecord(1, _ACTIVATION, "r1", "postgres:1:1", 1, 1))]
    checks = []
    for number in range(records):
        tx_id = number.to_bytes(32, "big")
        inputs = tuple(tx_id + index.to_bytes(4, "big") for index in range(4))
        canonical = encode_request(Request(tx_id, inputs, (), None, _PARTY))
        signature = key.sign(canonical).signature
        submission = Submission(canonical, public_key, signature, "anonymous", tx_id.hex(), (_PARTY,), "0" * 36)
        values.append(encode_record(RequestRecord(1, _ACTIVATION, number, number, submission)))
        checks.append((public_key, canonical, signature))
    paths = []
    size = -(-len(values) // _FILES)
    for start in range(0, len(values), size):
        part = values[start : start + size]
        paths.append(folder / f"{start:019d}.parquet")
        offsets = pa.array(range(start, start + len(part)), pa.int64())
        pq.write_table(pa.table({"offset": offsets, "value": pa.array(part, pa.binary())}), paths[-1])
    return SignedLog(paths, checks)
