"""A log whose requests are truly signed, and what a verifier needs of each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from nacl.signing import SigningKey

from replica.native.lanes import Check
from replica.notary.records import encode_record, request_record
from replica.notary.requests import Request, Submission
from replica.notary.terms import Terms, encode_canonical
from tests.bench.filler import DEDUPLICATION_US
from tests.worlds.beginning import LEDGER, OFFICER, beginning, next_barrier

FILES = 16  # one task each
_PARTY = "O=Party 000,L=London,C=GB"
_KEY = SigningKey(bytes(range(32)))
_ACTIVATION = bytes(range(16))
_BEGINNING = [*beginning(OFFICER, (_PARTY, bytes(_KEY.verify_key))), next_barrier(2, _ACTIVATION)]


@dataclass(frozen=True, slots=True)
class SignedLog:
    """The log's files, and for each of them what a verifier needs of its requests."""

    paths: list[Path]
    checks: list[list[Check]]


def write_signed_log(folder: Path, requests: int) -> SignedLog:
    """Write a log of this many requests, after a ledger's beginning, in files of like length."""
    folder.mkdir(parents=True)
    ends = [len(_BEGINNING) + requests * number // FILES for number in range(FILES + 1)]
    ends[0] = 0  # the genesis
    stretches = [(folder / f"{first:019d}.parquet", first, end) for first, end in pairwise(ends)]
    with get_context("spawn").Pool(os.cpu_count()) as pool:
        checks = pool.starmap(_write_file, stretches, chunksize=1)
    return SignedLog([path for path, _, _ in stretches], checks)


def _write_file(path: Path, first: int, end: int) -> list[Check]:
    """A file with the records of these offsets; returns what verifies its requests."""
    public_key = bytes(_KEY.verify_key)
    values = [] if first else [*_BEGINNING]
    checks = []
    for number in range(first + len(values), end):
        tx_id = number.to_bytes(32, "big")
        inputs = tuple(tx_id + index.to_bytes(4, "big") for index in range(4))
        terms = Terms("anonymous", tx_id.hex(), (_PARTY,))
        canonical = encode_canonical(Request(LEDGER, tx_id, inputs, (), None, _PARTY), terms)
        signature = _KEY.sign(canonical).signature
        submission = Submission(canonical, public_key, signature, "anonymous", tx_id.hex(), (_PARTY,), "0" * 36)
        values.append(encode_record(request_record(2, _ACTIVATION, number, number, submission, DEDUPLICATION_US)))
        checks.append((public_key, canonical, signature))
    offsets = pa.array(range(first, end), pa.int64())
    pq.write_table(pa.table({"offset": offsets, "value": pa.array(values, pa.binary())}), path)
    return checks
