"""Every counting request's signature: did the party ask for this, with this key?"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pyspark.sql import DataFrame, SparkSession

from pipeline.audit.findings import SCHEMA, FindingCode, finding_batch
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import Batches, numbered_batches
from pipeline.judging.columns import Columns
from pipeline.judging.plan import Plan, counted
from pipeline.judging.walk import Array
from replica.notary.signatures import signature_holds

Verifier = Callable[[bytes, bytes, bytes], bool]
"""(public key, message, signature) -> whether it holds."""


def bad_signatures(
    spark: SparkSession,
    log: LogSlices,
    plan: Plan,
    slices: Sequence[int],
    *,
    after: int,
    holds: Verifier = signature_holds,
) -> DataFrame:
    """Findings on counting requests behind offset `after`, in these slices, whose signature does not hold."""

    def verify(at: int) -> Batches:
        columns = log.read(slices[at])
        bad = unsigned(columns, counted(columns, plan.rules_of(columns)).requests, after, holds)
        if bad:
            found = [(offset, "the signature is not that of the key in the record over the request") for offset in bad]
            yield finding_batch(FindingCode.SIGNATURE_INVALID, found)

    return numbered_batches(spark, len(slices), verify, SCHEMA)


def unsigned(columns: Columns, requests: Array, after: int, holds: Verifier = signature_holds) -> list[int]:
    """Offsets behind `after`, of the requests picked, whose signature does not hold."""
    data = columns.raw.tobytes()
    parts = zip(
        (columns.first_offset + columns.rows[requests]).tolist(),
        columns.public_key_at[requests].tolist(),
        columns.signature_at[requests].tolist(),
        columns.canonical_at[requests].tolist(),
        columns.canonical_bytes[requests].tolist(),
        strict=True,
    )
    return [
        offset
        for offset, key, signature, request, size in parts
        if offset > after
        and not holds(data[key : key + 32], data[request : request + size], data[signature : signature + 64])
    ]
