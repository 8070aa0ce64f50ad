"""A request log of any length, made fast: most requests consume four states, some collide, repeat, refer or come late.

The records are laid out by numpy from templates that the notary's own encoder made, so they are what a notary writes;
signatures are random bytes (the signature audit has a log of its own).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from replica.notary.canonical import REFS_AT, TX_ID_AT
from replica.notary.records import encode_record, request_record
from replica.notary.requests import STATE_REF_BYTES, Request, Submission, TimeWindow
from replica.notary.terms import Terms, encode_canonical
from tests.bench.filler import DEDUPLICATION_US
from tests.worlds.beginning import LEDGER, OFFICER, beginning, next_barrier

TOPIC_ID = "bench-topic"
FILE_RECORDS = 1 << 20
GROUP_RECORDS = 1 << 16
_ACTIVATION = bytes(range(16))
_FIRST_SEQUENCE = 1 << 20  # so that every sequence number takes five bytes
_FIRST_STAMP_US = 1_763_700_000_000_000
_KEY = b"\xe3" * 32
_PARTIES = [f"O=Party {number:03},L=London,C=GB" for number in range(0, 512, 2)]
_BEGINNING = [*beginning(OFFICER, *[(party, _KEY) for party in _PARTIES]), next_barrier(2, _ACTIVATION)]
_TX_MARK, _REF_MARK, _PARTY_MARK = b"\xe1" * 32, b"\xe2" * 32, b"Party 000"

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of request, and how often it comes."""

    share: float
    inputs: int
    references: int = 0
    window: bool = False


SHAPES = (Shape(0.90, 4), Shape(0.05, 2, 1), Shape(0.05, 3, 0, window=True))
REPEATED, DOUBLE_SPENT, LATE = 0.02, 0.011, 0.01  # shares of requests: retries, conflicts, outside their window


class _Template:
    """The bytes of one shape, and where its parts are."""

    def __init__(self, shape: Shape) -> None:
        refs = tuple(_REF_MARK + number.to_bytes(4, "big") for number in range(shape.inputs + shape.references))
        window = TimeWindow(None, 1) if shape.window else None
        request = Request(LEDGER, _TX_MARK, refs[: shape.inputs], refs[shape.inputs :], window, _PARTIES[0])
        canonical = encode_canonical(request, Terms("anonymous", _TX_MARK.hex(), (_PARTIES[0],)))
        of = ("anonymous", _TX_MARK.hex(), (_PARTIES[0],), "0" * 36)
        submission = Submission(canonical, _KEY, b"\xe4" * 64, *of)
        head = (2, _ACTIVATION, _FIRST_SEQUENCE, _FIRST_STAMP_US)
        raw = encode_record(request_record(*head, submission, DEDUPLICATION_US))
        self.shape = shape
        self.raw = np.frombuffer(raw, np.uint8)
        self.sequence_at = 22
        self.stamp_at = 27
        canonical_at = raw.index(canonical)
        self.tx_at = canonical_at + TX_ID_AT
        self.refs_at = canonical_at + REFS_AT
        self.until_at = self.refs_at + STATE_REF_BYTES * len(refs) + 9
        self.commands_at = [found.start() for found in re.finditer(_TX_MARK.hex().encode(), raw)]
        self.parties_at = [found.start() for found in re.finditer(re.escape(_PARTY_MARK), raw)]
        self.signature_at = raw.index(b"\xe4" * 64)

    def fill(self, tx_ids: Array, refs: Array, numbers: Array, late: Array, rng: np.random.Generator) -> list[bytes]:
        count = len(numbers)
        rows = np.tile(self.raw, (count, 1))
        stamps = _FIRST_STAMP_US + 100 * numbers
        rows[:, self.sequence_at : self.sequence_at + 4] = _big_endian(_FIRST_SEQUENCE + numbers, 4)
        rows[:, self.stamp_at : self.stamp_at + 8] = _big_endian(stamps, 8)
        rows[:, self.tx_at : self.tx_at + 32] = tx_ids
        width = STATE_REF_BYTES * refs.shape[1]
        rows[:, self.refs_at : self.refs_at + width] = refs.reshape(count, width)
        if self.shape.window:
            rows[:, self.until_at : self.until_at + 8] = _big_endian(np.where(late, stamps, stamps + 10**9), 8)
        for at in self.commands_at:
            rows[:, at : at + 64] = _hex(tx_ids)
        for at in self.parties_at:
            rows[:, at + 6 : at + 9] = _digits(tx_ids[:, 0].astype(int) * 2)
        rows[:, self.signature_at : self.signature_at + 64] = rng.integers(0, 256, (count, 64), np.uint8)
        return rows.view(f"V{rows.shape[1]}").ravel().tolist()


def write_big_log(folder: Path, records: int, seed: int = 1) -> list[Path]:
    """Write a log of this many request records, after a beginning, into Parquet files; returns them in log order."""
    folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    offset = 0
    for values in _files(records, seed):
        paths.append(folder / f"{offset:019d}.parquet")
        offsets = pa.array(np.arange(offset, offset + len(values)))
        pq.write_table(
            pa.table({"offset": offsets, "value": pa.array(values, pa.large_binary())}),
            paths[-1],
            row_group_size=GROUP_RECORDS,
            compression="zstd",
            use_dictionary=False,
        )
        offset += len(values)
    return paths


def ready_values(records: int, seed: int = 1) -> list[bytes]:
    """The values of so many records, the ledger's beginning among them."""
    return [value for values in _files(records - len(_BEGINNING), seed) for value in values]


def _files(records: int, seed: int) -> Iterator[list[bytes]]:
    rng = np.random.default_rng(seed)
    templates = [_Template(shape) for shape in SHAPES]
    values = [*_BEGINNING]
    spent: list[Array] = [rng.integers(0, 256, (1000, STATE_REF_BYTES), np.uint8)]
    for start in range(0, records, GROUP_RECORDS):
        count = min(GROUP_RECORDS, records - start)
        values += _block(rng, templates, start, count, spent)
        if len(values) >= FILE_RECORDS:
            yield values
            values = []
    if values:
        yield values


def _block(
    rng: np.random.Generator, templates: list[_Template], start: int, count: int, spent: list[Array]
) -> list[bytes]:
    kinds = rng.choice(len(templates), count, p=[template.shape.share for template in templates])
    block: list[bytes] = [b""] * count
    for kind, template in enumerate(templates):
        rows = np.flatnonzero(kinds == kind)
        states = template.shape.inputs + template.shape.references
        tx_ids = rng.integers(0, 256, (len(rows), 32), np.uint8)
        refs = rng.integers(0, 256, (len(rows), states, STATE_REF_BYTES), np.uint8)
        refs[:, :, 32:35] = 0
        refs[:, :, 35] &= 3
        stolen = rng.random(len(rows)) < DOUBLE_SPENT
        refs[stolen, 0] = spent[0][rng.integers(0, len(spent[0]), stolen.sum())]
        order = np.argsort(
            refs[:, : template.shape.inputs].reshape(-1, STATE_REF_BYTES).view("S36").reshape(len(rows), -1)
        )
        refs[:, : template.shape.inputs] = np.take_along_axis(refs[:, : template.shape.inputs], order[:, :, None], 1)
        repeated = np.flatnonzero(rng.random(len(rows)) < REPEATED)
        repeated = repeated[repeated > 0]
        source = rng.integers(0, repeated) if len(repeated) else repeated
        tx_ids[repeated], refs[repeated] = tx_ids[source], refs[source]
        late = rng.random(len(rows)) < LATE * 20
        filled = template.fill(tx_ids, refs, start + rows, late, rng)
        for row, value in zip(rows.tolist(), filled, strict=True):
            block[row] = value
        if kind == 0:
            spent[0] = refs[:2000].reshape(-1, STATE_REF_BYTES).copy()
    return block


def _big_endian(numbers: Array, size: int) -> Array:
    return numbers.astype(f">u{size}").view(np.uint8).reshape(-1, size)


def _hex(rows: Array) -> Array:
    digits = np.frombuffer(b"0123456789abcdef", np.uint8)
    return np.stack((digits[rows >> 4], digits[rows & 15]), axis=2).reshape(len(rows), -1)


def _digits(numbers: Array) -> Array:
    return np.stack((numbers // 100, numbers // 10 % 10, numbers % 10), axis=1).astype(np.uint8) + ord("0")
