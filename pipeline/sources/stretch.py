"""The request log in Arrow batches, read with the replicas' own client (`LogAdmin.stretch`), which every log has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pyarrow as pa

from replica.log.admin import Header, Stretch
from replica.log.open import open_log_admin
from replica.log.settings import LogSettings

ARROW_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)


def stretches(first: int, end: int, splits: int) -> list[tuple[int, int]]:
    """The range [first, end) in at most `splits` ranges, none of them empty, of nearly equal length."""
    count = min(splits, end - first)
    edges = [first + (end - first) * number // count for number in range(count + 1)] if count > 0 else []
    return list(pairwise(edges))


def read_stretch(settings: LogSettings, first: int, end: int) -> Iterator[pa.RecordBatch]:
    """The records [first, end) as batches of ARROW_SCHEMA. Raises LogRefused on a gap, and LogUnavailable."""
    return map(_batch, open_log_admin(settings).stretch(first, end))


def _batch(stretch: Stretch) -> pa.RecordBatch:
    first, count = stretch.first_offset, len(stretch.values)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(range(first, first + count), pa.int64()),
            pa.array(stretch.times_ms, pa.int64()),
            pa.array(stretch.keys, pa.binary()),
            pa.array(stretch.values, pa.binary()),
            pa.array([_pairs(headers) for headers in stretch.headers], ARROW_SCHEMA.field("headers").type),
        ],
        schema=ARROW_SCHEMA,
    )


def _pairs(headers: Sequence[Header] | None) -> list[dict[str, Any]] | None:
    return None if headers is None else [{"key": key, "value": value} for key, value in headers]
