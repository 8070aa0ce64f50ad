"""Traces who submitted what and when: every record that touches a state, a transaction or a party, with its evidence.

The evidence of a request is complete in itself: the record's bytes as the log has them, the canonical bytes that the
party signed, its key and signature, and what the log decided. docs/formats.md describes how to check each without this
program.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from pipeline.jobs.judge import Judged, judge_log
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import numbered
from pipeline.jobs.verdicts import conflicting_states, requests, verdicts
from pipeline.judging.evidence import evidence
from pipeline.judging.lost import Lost, described, lost_with
from pipeline.judging.plan import counted
from pipeline.judging.subjects import Subject
from replica.notary.requests import format_state_ref
from replica.notary.salvage import NO_SALVAGES, Salvages


class Traced(NamedTuple):
    """The requests of interest, and the ranges of the log in which others may have been lost."""

    entries: list[dict[str, Any]]
    lost: list[Lost]


def trace(
    spark: SparkSession,
    log: LogSlices,
    work: Path,
    subject: Subject,
    limit: int,
    *,
    salvages: Salvages = NO_SALVAGES,
) -> Traced:
    """The first `limit` counting requests of interest, in log order, each with its evidence; byte strings as hex. Of
    lost records among them, what their salvage has.

    The whole log is judged for it. `work`: a folder that every worker reaches. Raises as `judge_log` does.
    """
    judged = judge_log(spark, log, work, salvages=salvages)
    plan = judged.plan

    def find(number: int) -> Iterator[dict[str, Any]]:
        columns = log.read(number)
        found = counted(columns, plan)
        for row in columns.rows[subject.pick(columns, found.requests)][:limit].tolist():
            yield {"offset": columns.first_offset + row, "value": columns.value(row)}

    first = numbered(spark, len(log), find, "offset bigint, value binary").orderBy("offset").limit(limit).collect()
    decisions = _decisions(spark, log, judged, [row.offset for row in first])
    found = [
        evidence(row.offset, bytes(row.value)) | _in_force(row.offset, judged) | decisions[row.offset] for row in first
    ]
    if subject.key is not None:
        found += lost_with(subject.key, judged.lost, salvages)
    found.sort(key=itemgetter("offset"))
    return Traced(found[:limit], [described(one, salvages) for one in judged.lost])


def _in_force(offset: int, judged: Judged) -> dict[str, Any]:
    """The activation that a record counts under."""
    barrier_at, barrier = [item for item in judged.plan.barriers if item[0] < offset][-1]
    return {"epoch": barrier.epoch, "replica": barrier.replica, "barrier_offset": barrier_at}


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
