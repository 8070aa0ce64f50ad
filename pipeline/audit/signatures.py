"""Verifies every counting request's signature: whether the party signed this request with this key."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession

from pipeline.audit.findings import SCHEMA, FindingCode, finding_batch
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import Batches, numbered_batches
from pipeline.judging.columns import Columns
from pipeline.judging.cursor import Array
from pipeline.judging.plan import Plan, counted
from replica.native.lanes import Check
from replica.native.signatures import signatures_hold

TOGETHER = 4_096  # signatures given to the verifier at once: bounds the copies that it is given

Verifier = Callable[[Sequence[Check]], list[bool]]
"""Of each (public key, message, signature): whether it holds."""


def bad_signatures(
    spark: SparkSession,
    log: LogSlices,
    plan: Plan,
    slices: Sequence[int],
    *,
    after: int,
    hold: Verifier = signatures_hold,
) -> DataFrame:
    """Findings on counting requests after offset `after`, in these slices, whose signature does not hold."""

    def verify(at: int) -> Batches:
        columns = log.read(slices[at])
        bad = unsigned(columns, counted(columns, plan).requests, after, hold)
        if bad:
            found = [(offset, "the signature is not that of the key in the record over the request") for offset in bad]
            yield finding_batch(FindingCode.SIGNATURE_INVALID, found)

    return numbered_batches(spark, len(slices), verify, SCHEMA)


def unsigned(columns: Columns, requests: Array, after: int, hold: Verifier = signatures_hold) -> list[int]:
    """Offsets after `after`, of the requests picked, whose signature does not hold."""
    wanted = requests[columns.first_offset + columns.rows[requests] > after]
    bad: list[int] = []
    for start in range(0, len(wanted), TOGETHER):
        pick = wanted[start : start + TOGETHER]
        offsets = (columns.first_offset + columns.rows[pick]).tolist()
        bad += [offset for offset, holds in zip(offsets, hold(_checks(columns, pick)), strict=True) if not holds]
    return bad


def _checks(columns: Columns, pick: Array) -> list[Check]:
    starts = columns.canonical_at[pick]
    ends = starts + columns.canonical_bytes[pick]
    return list(
        zip(
            columns.at(columns.public_key_at[pick], 32).tolist(),
            [columns.raw[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)],
            columns.at(columns.signature_at[pick], 64).tolist(),
            strict=True,
        )
    )
