"""Traces who submitted what and when: every record that touches a state, a transaction or a party, with its evidence.

The evidence of a request is complete in itself: the record's bytes as the log has them, the canonical bytes that the
party signed, its key and signature, and what the log decided. docs/formats.md describes how to check each without this
program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.jobs.judge import Judged, judge_log
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import numbered
from pipeline.jobs.verdicts import conflicting_states, requests, verdicts
from pipeline.judging.columns import Columns
from pipeline.judging.cursor import Array
from pipeline.judging.plan import counted
from replica.notary.records import RequestRecord, RequestRecordV2, decode_record, format_named, record_digest
from replica.notary.requests import format_state_ref
from replica.notary.signatures import signature_holds
from replica.notary.terms import request_in

Subject = Callable[[Columns, Array], Array]
"""Of the requests picked (indexes into `Columns.rows`), those that are of interest."""


def of_tx(tx_id: bytes) -> Subject:
    """Requests under a transaction id."""

    def pick(columns: Columns, among: Array) -> Array:
        same = np.all(columns.tx_ids()[among].view(np.uint8).reshape(-1, 32) == np.frombuffer(tx_id, np.uint8), axis=1)
        return among[same]

    return pick


def of_state(ref: bytes) -> Subject:
    """Requests that consume a state or refer to it."""

    def pick(columns: Columns, among: Array) -> Array:
        naming = np.zeros(len(among), np.bool_)
        for references in (False, True):
            owner, refs = columns.refs(among, references=references)
            same = np.all(refs.view(np.uint8).reshape(-1, 36) == np.frombuffer(ref, np.uint8), axis=1)
            naming[owner[same]] = True
        return among[naming]

    return pick


def of_party(name: str) -> Subject:
    """Requests of the party with this X.500 name."""
    wanted = np.frombuffer(name.encode(), np.uint8)

    def pick(columns: Columns, among: Array) -> Array:
        starts, sizes = columns.parties(among)
        near = sizes == len(wanted)
        found = columns.at(starts[near], len(wanted)).view(np.uint8).reshape(-1, len(wanted))
        mine: Array = among[near][np.all(found == wanted, axis=1)]
        return mine

    return pick


def trace(spark: SparkSession, log: LogSlices, work: Path, subject: Subject, limit: int) -> list[dict[str, Any]]:
    """The first `limit` counting requests of interest, in log order, each with its evidence; byte strings as hex.

    The whole log is judged for it. `work`: a folder that every worker reaches. Raises as `judge_log` does.
    """
    judged = judge_log(spark, log, work, closed=True)
    plan = judged.plan

    def find(number: int) -> Iterator[dict[str, Any]]:
        columns = log.read(number)
        found = counted(columns, plan.rules_of(columns))
        for row in columns.rows[subject(columns, found.requests)][:limit].tolist():
            yield {"offset": columns.first_offset + row, "value": columns.value(row)}

    first = numbered(spark, len(log), find, "offset bigint, value binary").orderBy("offset").limit(limit).collect()
    decisions = _decisions(spark, log, judged, [row.offset for row in first])
    return [evidence(row.offset, bytes(row.value), judged) | decisions[row.offset] for row in first]


def evidence(offset: int, value: bytes, judged: Judged) -> dict[str, Any]:
    """What a counting request record proves by itself."""
    record = decode_record(value, format_named(value))
    if not isinstance(record, RequestRecord):
        raise TypeError(f"the record at offset {offset} is no request")
    submission = record.submission
    request, digest = request_in(record)
    barrier_at, barrier = [item for item in judged.plan.barriers if item[0] < offset][-1]
    return {
        "offset": offset,
        "tx_id": request.tx_id.hex(),
        "content_digest": digest.hex(),
        "inputs": [format_state_ref(ref) for ref in request.inputs],
        "references": [format_state_ref(ref) for ref in request.references],
        "party": request.party,
        "user_id": submission.user_id,
        "command_id": submission.command_id,
        "act_as": list(submission.act_as),
        "submission_id": submission.submission_id,
        "deduplication_us": record.deduplication_us if isinstance(record, RequestRecordV2) else None,
        "after_offset": record.after_offset if isinstance(record, RequestRecordV2) else None,
        "submitted_us": record.stamp_us,
        "epoch": barrier.epoch,
        "replica": barrier.replica,
        "barrier_offset": barrier_at,
        "public_key": submission.public_key.hex(),
        "signature": submission.signature.hex(),
        "signature_holds": signature_holds(submission.public_key, submission.request, submission.signature),
        "signed_bytes": submission.request.hex(),
        "record": value.hex(),
        "record_sha256": record_digest(value).hex(),
    }


def _decisions(spark: SparkSession, log: LogSlices, judged: Judged, offsets: list[int]) -> dict[int, dict[str, Any]]:
    """What the log decided about some requests, and the states in the way of each."""

    def of_these(frame: DataFrame) -> DataFrame:
        return frame.where(F.col("offset").isin(offsets))

    slices = [number for number, end in enumerate(judged.slice_ends) if _any_before(offsets, number, end, judged)]
    decided = of_these(verdicts(spark, judged, requests(spark, log, judged.plan, slices))).collect()
    decisions: dict[int, dict[str, Any]] = {
        row.offset: {
            "outcome": row.outcome,
            "notarised_offset": row.notarised_offset,
            "judged_us": row.judged_us,
            "conflicts": [],
        }
        for row in decided
    }
    for row in of_these(conflicting_states(spark, judged)).orderBy("offset", "referred", "state").collect():
        if decisions[row.offset]["outcome"] == "STATE_CONFLICT":
            decisions[row.offset]["conflicts"].append(
                {
                    "state": format_state_ref(bytes(row.state)),
                    "usage": "reference" if row.referred else "input",
                    "consumed_by": bytes(row.consumed_by).hex(),
                    "consumed_at": row.consumed_at,
                }
            )
    return decisions


def _any_before(offsets: list[int], number: int, end: int, judged: Judged) -> bool:
    start = judged.slice_ends[number - 1] if number else 0
    return any(start <= offset < end for offset in offsets)
