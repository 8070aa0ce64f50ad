"""Compares a ledger with the log: each completion must be what its record yields; none may be missing or invented.

Both sides are rows of one shape, keyed by log offset. They are joined; nothing is collected.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.audit.findings import FindingCode
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import Batches, numbered_batches
from pipeline.judging.columns import Columns
from pipeline.judging.plan import Counted, Plan, counted
from replica.notary.codes import Code
from replica.notary.errors import InvariantBroken
from replica.notary.outcomes import DEDUPLICATED, NOTARISED
from replica.notary.records import RequestRecord, decode_record, format_named
from replica.notary.rules import Conflict, Usage
from replica.notary.terms import Terms, signed_in
from replica.store.interface import Completion
from replica.store.open import export_range

SUCCESSES = (NOTARISED, DEDUPLICATED)
RANGE_COMPLETIONS = 100_000
_BATCH_ROWS = 10_000
_LOGGED = pa.schema([("log_offset", pa.int64()), ("facts", pa.binary())])
_PUBLISHED = pa.schema(
    [
        ("log_offset", pa.int64()),
        ("ledger_offset", pa.int64()),
        ("tx_id", pa.binary()),
        ("content_digest", pa.binary()),
        ("facts", pa.binary()),
        ("outcome", pa.string()),
        ("notarised_offset", pa.int64()),
        ("detail", pa.binary()),
        ("follows", pa.bool_()),
    ]
)


def facts_digest(  # noqa: PLR0917 - what a completion has
    command: Terms | Completion,
    submission_id: str,
    tx_id: bytes,
    content_digest: bytes,
    recorded_us: int,
    change: bytes,
) -> bytes:
    """SHA-256 of everything in a completion but its offsets and the verdict."""
    texts = (command.user_id, command.command_id, tuple(command.act_as), submission_id)
    return sha256(msgspec.msgpack.encode((change, *texts, tx_id, content_digest, recorded_us))).digest()


def logged_completions(
    spark: SparkSession, log: LogSlices, plan: Plan, slices: Sequence[int], *, decided: DataFrame, conflicts: DataFrame
) -> DataFrame:
    """The completions of these slices. `decided`: verdicts of their requests; `conflicts`: conflicting states."""

    def read(at: int) -> Batches:
        columns = log.read(slices[at])
        yield from _batches(_logged(columns, counted(columns, plan)), _LOGGED)

    facts = numbered_batches(spark, len(slices), read, "log_offset bigint, facts binary")
    verdicts = decided.select(F.col("offset").alias("log_offset"), "outcome", "notarised_offset")
    details = (
        conflicts.groupBy(F.col("offset").alias("log_offset"))
        .agg(F.sort_array(F.collect_list(F.struct("referred", "state", "consumed_by_hash"))).alias("states"))
        .mapInArrow(_details, "log_offset bigint, detail binary")
    )
    conflict = F.col("outcome") == Code.STATE_CONFLICT.name
    return (
        facts.join(verdicts, "log_offset", "left")
        .join(details, "log_offset", "left")
        .select(
            "log_offset",
            "facts",
            "outcome",
            "notarised_offset",
            F.when(conflict, F.col("detail")).otherwise(F.lit(b"")).alias("detail"),
        )
    )


def published_completions(spark: SparkSession, conninfo: str, after: int, ledger_end: int) -> DataFrame:
    """A ledger's completions after ledger offset `after`, read by tasks, each with a connection of its own."""

    def read(number: int) -> Batches:
        start = after + number * RANGE_COMPLETIONS
        yield from _batches(_published(conninfo, start, min(start + RANGE_COMPLETIONS, ledger_end)), _PUBLISHED)

    count = (max(0, ledger_end - after) + RANGE_COMPLETIONS - 1) // RANGE_COMPLETIONS
    return numbered_batches(
        spark,
        count,
        read,
        "log_offset bigint, ledger_offset bigint, tx_id binary, content_digest binary, facts binary, outcome string,"
        " notarised_offset bigint, detail binary, follows boolean",
    )


def wrong_completions(
    name: str, logged: DataFrame, published: DataFrame, from_offset: int, until_offset: int
) -> DataFrame:
    """Findings on log offsets from `from_offset` up to and with `until_offset`: both sides, joined row by row.

    `name`: what to call the side that published.
    """
    covered = F.col("log_offset").between(from_offset, until_offset)
    said = F.struct("facts", "outcome", "notarised_offset", "detail")
    ours = logged.where(covered).select("log_offset", said.alias("ours"))
    theirs = published.where(covered).select("log_offset", said.alias("theirs"))
    code = (
        F.when(F.col("theirs").isNull(), FindingCode.COMPLETION_MISSING.value)
        .when(F.col("ours").isNull(), FindingCode.COMPLETION_EXTRA.value)
        .when(
            F.col("theirs.outcome").isin(*SUCCESSES) & ~F.col("ours.outcome").isin(*SUCCESSES),
            FindingCode.DOUBLE_SPEND.value,
        )
        .otherwise(FindingCode.COMPLETION_DIFFERS.value)
    )
    message = F.concat(
        F.lit("the log says "),
        F.coalesce("ours.outcome", F.lit("nothing")),
        F.lit(f", {name} "),
        F.coalesce("theirs.outcome", F.lit("nothing")),
        F.when(
            F.col("ours.outcome") == F.col("theirs.outcome"), ", with other ids, offsets, times or states"
        ).otherwise(""),
    )
    both = ours.join(theirs, "log_offset", "full_outer")
    return both.where(~F.col("ours").eqNullSafe(F.col("theirs"))).select(
        code.alias("code"), F.col("log_offset").alias("offset"), message.alias("message")
    )


def wrong_lost(name: str, published: DataFrame, kept: DataFrame, from_offset: int) -> DataFrame:
    """Findings on completions of lost records from `from_offset` on: one that notarises its transaction there must be
    what the salvage has. Of refusals and repeats there nothing is known.

    `published`: of lost records only. `kept`: rows of `lost_verdicts`. `name`: what to call the side that published.
    """
    first = (F.col("outcome") == NOTARISED) & (F.col("notarised_offset") == F.col("log_offset"))
    theirs = published.where(first & (F.col("log_offset") >= from_offset))
    ours = kept.select(F.col("offset").alias("log_offset"), "tx_id", "content_digest")
    return theirs.join(ours, ["log_offset", "tx_id", "content_digest"], "left_anti").select(
        F.lit(FindingCode.COMPLETION_DIFFERS.value).alias("code"),
        F.col("log_offset").alias("offset"),
        F.lit(f"{name} has a transaction as notarised by this lost record that the salvage does not have").alias(
            "message"
        ),
    )


def wrong_ledger(published: DataFrame) -> DataFrame:
    """Findings on ledger offsets that leave a gap, or do not have the log's order."""
    return published.where(~F.col("follows")).select(
        F.lit(FindingCode.LEDGER_NOT_DENSE.value).alias("code"),
        F.col("log_offset").alias("offset"),
        F.concat(F.lit("ledger offset "), F.col("ledger_offset"), F.lit(" does not follow the one before")).alias(
            "message"
        ),
    )


def _logged(columns: Columns, found: Counted) -> Iterator[dict[str, Any]]:
    for row, judged_us in zip(columns.rows[found.requests].tolist(), found.judged_us.tolist(), strict=True):
        value = columns.value(row)
        record = decode_record(value, format_named(value))
        if not isinstance(record, RequestRecord):
            raise InvariantBroken(f"the record at offset {columns.first_offset + row} was judged as a request")
        request, digest, terms, change = signed_in(record)
        facts = facts_digest(terms, record.submission_id, request.tx_id, digest, judged_us, change)
        yield {"log_offset": columns.first_offset + row, "facts": facts}


def _published(conninfo: str, after: int, until: int) -> Iterator[dict[str, Any]]:
    """Completions after `after`; each is compared with the one before, so the range is read from there on."""
    before: tuple[int, int] | None = None
    for ledger_offset, completion in export_range(conninfo, after - 1, until):
        follows = (
            ledger_offset in (after, after + 1)
            if before is None
            else ledger_offset == before[0] + 1 and completion.log_offset > before[1]
        )
        before = ledger_offset, completion.log_offset
        if ledger_offset > after:
            yield {
                "log_offset": completion.log_offset,
                "ledger_offset": ledger_offset,
                "tx_id": completion.tx_id,
                "content_digest": completion.content_digest,
                "facts": _facts_of(completion),
                "outcome": completion.outcome,
                "notarised_offset": completion.notarised_offset,
                "detail": completion.detail,
                "follows": follows,
            }


def _facts_of(completion: Completion) -> bytes:
    of_transaction = (completion.tx_id, completion.content_digest, completion.recorded_us, completion.change_id)
    return facts_digest(completion, completion.submission_id, *of_transaction)


def _details(batches: Batches) -> Batches:
    """The conflicting states in a completion: inputs first, each kind ascending."""
    for batch in batches:
        details = [
            msgspec.msgpack.encode(
                [
                    Conflict(one["state"], one["consumed_by_hash"], Usage.REFERENCE if one["referred"] else Usage.INPUT)
                    for one in states
                ]
            )
            for states in batch.column("states").to_pylist()
        ]
        yield pa.RecordBatch.from_arrays(
            [batch.column("log_offset"), pa.array(details, pa.binary())], ["log_offset", "detail"]
        )


def _batches(rows: Iterator[dict[str, Any]], schema: pa.Schema) -> Batches:
    while together := list(islice(rows, _BATCH_ROWS)):
        yield pa.RecordBatch.from_pylist(together, schema)
