"""The log's verdicts as rows: every counting request with what was decided, the same as every replica decides."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.jobs.judge import Judged
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import Batches, fixed_binaries, numbered_batches
from pipeline.judging.claims import CONSUMES, content_digests, kinds, taken
from pipeline.judging.columns import Columns
from pipeline.judging.cursor import Array, spread
from pipeline.judging.entries import conflicts, entries, exceptions
from pipeline.judging.plan import Counted, Plan, counted
from pipeline.judging.reasons import (
    CONFLICT,
    DEDUPLICATED,
    DUPLICATE,
    KEY_CLOSED,
    NO_KEY,
    OTHER_COMMAND,
    REUSED,
    WINDOW,
)
from replica.notary.outcomes import CODE_OF, NOTARISED
from replica.notary.rules import TX_KEY, Outcome, hash_of_tx_id

_LOST_ROWS = 1 << 17  # of claims of lost records that are in memory at a time

OUTCOMES = {
    DEDUPLICATED: Outcome.DEDUPLICATED,
    NO_KEY: Outcome.PARTY_UNKNOWN,
    KEY_CLOSED: Outcome.KEY_NOT_VALID,
    OTHER_COMMAND: Outcome.COMMAND_ID_REUSED,
    DUPLICATE: Outcome.NOTARISED,
    REUSED: Outcome.TX_ID_REUSED,
    CONFLICT: Outcome.CONFLICT,
    WINDOW: Outcome.TIME_WINDOW_CLOSED,
}


def requests(spark: SparkSession, log: LogSlices, plan: Plan, slices: Sequence[int] | None = None) -> DataFrame:
    """Every counting request: `offset`, `tx_id`, `content_digest`, `party`, `public_key`, `sequence`, `stamp_us`,
    `judged_us`, `inputs_n` and `references_n`. `slices`: those to read, by default all.
    """
    numbers = list(range(len(log)) if slices is None else slices)

    def read(at: int) -> Batches:
        columns = log.read(numbers[at])
        yield _request_batch(columns, counted(columns, plan))

    return numbered_batches(
        spark,
        len(numbers),
        read,
        "offset bigint, tx_id binary, content_digest binary, party string, public_key binary, sequence bigint,"
        " stamp_us bigint, judged_us bigint, inputs_n bigint, references_n bigint",
    )


def verdicts(spark: SparkSession, judged: Judged, of_requests: DataFrame) -> DataFrame:
    """In: requests, and the judgement of their log.
    Out: the same rows with `outcome` (see replica.notary.outcomes) and `notarised_offset`.
    """
    ranges = len(judged.by_key)
    of_requests_alone = (judged.by_command, *judged.barred)

    def against(number: int) -> Batches:
        if number < ranges:
            claims = judged.claims(number)
            found = exceptions(claims, entries(claims, judged.dropped_marks()))
        else:
            found = np.load(of_requests_alone[number - ranges])
        yield pa.RecordBatch.from_pydict(
            {
                "offset": found["offset"],
                "reason": found["reason"].astype(np.int32),
                "notarised_offset": found["notarised_offset"],
            }
        )

    parts = ranges + len(of_requests_alone)
    found = numbered_batches(spark, parts, against, "offset bigint, reason int, notarised_offset bigint")
    deciding = found.groupBy("offset").agg(F.min(F.struct("reason", "notarised_offset")).alias("deciding"))
    reason = F.col("deciding.reason")
    code = F.lit(NOTARISED)
    for value, outcome in OUTCOMES.items():
        code = F.when(reason == value, F.lit(CODE_OF[outcome])).otherwise(code)
    notarised_offset = F.when(reason.isNull(), F.col("offset")).when(
        reason.isin(DUPLICATE, DEDUPLICATED), F.col("deciding.notarised_offset")
    )
    return (
        of_requests.join(deciding, "offset", "left")
        .withColumns({"outcome": code, "notarised_offset": notarised_offset})
        .drop("deciding")
    )


def lost_verdicts(spark: SparkSession, judged: Judged) -> DataFrame:
    """What the salvages have as notarised in the log's lost ranges: offset, tx_id, content_digest, outcome,
    notarised_offset."""

    def read(_: int) -> Batches:
        claims = np.load(judged.lost_claims, mmap_mode="r")
        for start in range(0, len(claims), _LOST_ROWS):
            part = np.ascontiguousarray(claims[start : start + _LOST_ROWS])
            part = taken(part, kinds(part) == TX_KEY[0])
            offsets = part["offset"].astype(np.int64)
            yield pa.RecordBatch.from_pydict(
                {
                    "offset": offsets,
                    "tx_id": pa.array([key.ljust(33, b"\0")[1:] for key in part["key"].tolist()], pa.binary()),
                    "content_digest": pa.array(part["stands"].tolist(), pa.binary()),
                    "outcome": pa.array([NOTARISED] * len(part)),
                    "notarised_offset": offsets,
                }
            )

    return numbered_batches(
        spark,
        1 if judged.lost_claims else 0,
        read,
        "offset bigint, tx_id binary, content_digest binary, outcome string, notarised_offset bigint",
    )


def conflicting_states(spark: SparkSession, judged: Judged) -> DataFrame:
    """States in the way of requests: offset, referred (0 input, 1 reference), state, consumed_by, consumed_by_hash,
    consumed_at. They are part of an answer only if the request's verdict is STATE_CONFLICT.
    """

    def find(number: int) -> Batches:
        claims = judged.claims(number)
        against, entry = conflicts(claims, entries(claims, judged.dropped_marks()))
        consumers = entry["stands"].tolist()
        yield pa.RecordBatch.from_pydict(
            {
                "offset": against["offset"].astype(np.int64),
                "referred": (against["role"] & CONSUMES == 0).astype(np.int32),
                "state": pa.array([key.ljust(37, b"\0")[1:] for key in against["key"].tolist()], pa.binary()),
                "consumed_by": pa.array(consumers, pa.binary()),
                "consumed_by_hash": pa.array([hash_of_tx_id(tx_id) for tx_id in consumers], pa.binary()),
                "consumed_at": entry["offset"].astype(np.int64),
            }
        )

    return numbered_batches(
        spark,
        len(judged.by_key),
        find,
        "offset bigint, referred int, state binary, consumed_by binary, consumed_by_hash binary, consumed_at bigint",
    )


def _request_batch(columns: Columns, found: Counted) -> pa.RecordBatch:
    pick = found.requests
    rows = columns.rows[pick]
    return pa.RecordBatch.from_pydict(
        {
            "offset": columns.first_offset + rows,
            "tx_id": fixed_binaries(columns.tx_ids()[pick]),
            "content_digest": fixed_binaries(content_digests(columns, pick)),
            "party": _parties(columns, pick),
            "public_key": fixed_binaries(columns.at(columns.public_key_at[pick], 32)),
            "sequence": columns.sequence[rows],
            "stamp_us": columns.stamp_us[rows],
            "judged_us": found.judged_us,
            "inputs_n": columns.inputs_n[pick],
            "references_n": columns.references_n[pick],
        }
    )


def _parties(columns: Columns, pick: Array) -> pa.Array:
    starts, sizes = columns.parties(pick)
    _, positions = spread(starts, sizes, 1)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(columns.raw[positions])]
    return pa.Array.from_buffers(pa.string(), len(pick), buffers)
