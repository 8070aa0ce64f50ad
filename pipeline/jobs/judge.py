"""Judges a whole log on Spark: the plan of what counts, the claims by ranges of keys, and the requests that lose.

1. Survey each slice; the plan follows on the driver, from a few hundred bytes for each slice.
2. Write the claims of each slice, range by range of keys. Sort each range, and find the contested keys in it.
3. One task reads the claims on contested keys in log order, and lists the requests that lose.

The next job (index or verdicts) needs only the slices' files, each range's order and the list of the losers.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from pipeline.jobs.exchange import read_range, write_parts
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import attempt_file, numbered
from pipeline.judging.claims import (
    CLAIM,
    CLAIM_BYTES,
    CONSUMES,
    borders_between,
    by_range,
    claims_of,
    in_order,
    sample_keys,
    taken,
)
from pipeline.judging.columns import UNDECODABLE, Columns
from pipeline.judging.contested import Resolver, contested, offsets_marked
from pipeline.judging.cursor import Array
from pipeline.judging.plan import Plan, Survey, counted, make_plan, refuse_newer_rules, survey
from replica.notary.errors import SalvageMissing
from replica.notary.position import begin
from replica.notary.salvage import LOST_TAG

RANGE_BYTES = 64 << 20  # of claims that one task sorts; it needs about five times as much memory
SAMPLED_KEYS = 1 << 16  # of the whole log, to part the keys by
_SORTED_ROWS = 1 << 16  # of contested claims that are in memory at a time, for each range


class Judged(msgspec.Struct, frozen=True):
    """A judged log: files in the work folder that any worker can read, and the plan.

    `parts`: the claims of each slice, see `exchange`. `orders`: for each range of keys a file with the places of its
    claims by key and offset. `dropped`: requests that lose a contested key, as bits of `offsets_marked`.
    """

    plan: Plan
    slice_ends: tuple[int, ...]  # the offset after each slice
    parts: tuple[str, ...]
    orders: tuple[str, ...]
    dropped: str
    claim_count: int
    contested_count: int
    dropped_count: int

    def claims(self, number: int) -> Array:
        """The claims on one range of keys, by key and offset."""
        return taken(read_range(self.parts, number), np.fromfile(self.orders[number], np.uint32))

    def dropped_marks(self) -> Array:
        """The requests that lose, as bits; mapped from disk, so only the parts in use are in memory."""
        marks: Array = np.load(self.dropped, mmap_mode="r")
        return marks


def judge_log(
    spark: SparkSession, log: LogSlices, work: Path, *, closed: bool = False, ranges: int | None = None
) -> Judged:
    """Judge all records of a log. `closed`: keep the claims of requests outside their window, which verdicts need.

    `work`: a folder that every worker reaches. `ranges`: how many ranges of keys; by default as many as need at most
    RANGE_BYTES each. Raises InvariantBroken on a gap, FormatUnknown, and what the slices raise.
    """
    work.mkdir(parents=True, exist_ok=True)
    plan, ends, samples, claim_count = plan_log(spark, log)
    refuse_newer_rules(plan.barriers)
    borders = borders_between(samples, ranges or max(1, -(-claim_count * CLAIM_BYTES // RANGE_BYTES)))
    parts = _write_claims(spark, log, plan, borders, work, closed=closed)
    orders, contested_files = _order_claims(spark, parts, len(borders) + 1, work)
    dropped, contested_count, dropped_count = _resolve(spark, contested_files, plan.position.offset + 1, work)
    return Judged(plan, ends, parts, orders, dropped, claim_count, contested_count, dropped_count)


def plan_log(spark: SparkSession, log: LogSlices) -> tuple[Plan, tuple[int, ...], list[bytes], int]:
    """The plan for a log, where its slices end, a sample of the keys that are claimed, and how many claims at most."""
    per_slice = max(8, SAMPLED_KEYS // max(1, len(log)))

    def look(number: int) -> Iterator[dict[str, Any]]:
        columns = log.read(number)
        if len(columns):
            refuse_lost(columns)
            states = int((columns.inputs_n + columns.references_n).sum())
            found = msgspec.msgpack.encode((survey(columns), sample_keys(columns, per_slice)))
            yield {"number": number, "survey": found, "claims": len(columns.rows) + states}

    surveys: dict[int, Survey] = {}
    samples: list[bytes] = []
    claim_count = 0
    for row in numbered(spark, len(log), look, "number bigint, survey binary, claims bigint").collect():
        surveys[row.number], keys = msgspec.msgpack.decode(row.survey, type=tuple[Survey, list[bytes]])
        samples += keys
        claim_count += row.claims
    plan, again = make_plan(begin(log.topic_id), surveys.values())
    if again:
        numbers = [number for number, found in surveys.items() if found.first_offset in set(again)]
        surveys |= _survey_again(spark, log, plan, numbers)
        plan, _ = make_plan(begin(log.topic_id), surveys.values())
    ends = tuple(surveys[number].end_offset for number in sorted(surveys))
    return plan, ends, samples, claim_count


def refuse_lost(columns: Columns) -> None:
    """Raise SalvageMissing for a lost record: jobs do not know salvages, and would judge as if nothing was lost."""
    for row in np.flatnonzero(columns.kind == UNDECODABLE).tolist():
        if columns.value(row).startswith(LOST_TAG):
            raise SalvageMissing(
                f"the record at offset {columns.first_offset + row} was lost, and jobs on Spark do not read past that:"
                " use notary check, and notary index rebuild --engine replay"
            )


def _survey_again(spark: SparkSession, log: LogSlices, plan: Plan, numbers: list[int]) -> dict[int, Survey]:
    def look(at: int) -> Iterator[dict[str, Any]]:
        columns = log.read(numbers[at])
        found = msgspec.msgpack.encode(survey(columns, plan.rules_of(columns)))
        yield {"number": numbers[at], "survey": found}

    rows = numbered(spark, len(numbers), look, "number bigint, survey binary").collect()
    return {row.number: msgspec.msgpack.decode(row.survey, type=Survey) for row in rows}


def _write_claims(
    spark: SparkSession, log: LogSlices, plan: Plan, borders: Array, work: Path, *, closed: bool
) -> tuple[str, ...]:
    """A file for each slice."""

    def write(number: int) -> Iterator[dict[str, Any]]:
        columns = log.read(number)
        claims = claims_of(columns, counted(columns, plan.rules_of(columns)), closed=closed)
        path = attempt_file(work, f"slice-{number:05d}", ".claims")
        write_parts(path, *by_range(claims, borders))
        yield {"number": number, "path": str(path)}

    rows = numbered(spark, len(log), write, "number bigint, path string").collect()
    return tuple(row.path for row in sorted(rows, key=attrgetter("number")))


def _order_claims(
    spark: SparkSession, parts: tuple[str, ...], ranges: int, work: Path
) -> tuple[tuple[str, ...], list[str]]:
    """For each range, the order of its claims; and the files with those on contested keys, by offset."""

    def order(number: int) -> Iterator[dict[str, Any]]:
        claims = read_range(parts, number)
        places = in_order(claims)
        path = attempt_file(work, f"range-{number:05d}", ".order")
        places.astype(np.uint32).tofile(path)
        disputed = contested(claims, places)
        disputed_path = ""
        if len(disputed):
            disputed_path = str(attempt_file(work, f"range-{number:05d}", ".contested"))
            taken(disputed, np.argsort(disputed["offset"], kind="stable")).tofile(disputed_path)
        yield {"number": number, "path": str(path), "contested": disputed_path}

    found = numbered(spark, ranges, order, "number bigint, path string, contested string").collect()
    rows = sorted(found, key=attrgetter("number"))
    return tuple(row.path for row in rows), [row.contested for row in rows if row.contested]


def _resolve(spark: SparkSession, files: list[str], end_offset: int, work: Path) -> tuple[str, int, int]:
    """One task, in log order; the driver learns only how many there were."""

    def decide(_: int) -> Iterator[dict[str, Any]]:
        path = attempt_file(work, "dropped", ".npy")
        resolver, seen, dropped = Resolver(), 0, []
        claims = merge(*[_contested_claims(file) for file in files], key=itemgetter(0))
        for offset, rows in groupby(claims, key=itemgetter(0)):
            keys = [(key, consumes) for _, key, consumes in rows]
            seen += len(keys)
            dropped += resolver.dropped([(offset, keys)])
        np.save(path, offsets_marked(dropped, end_offset))
        yield {"path": str(path), "seen": seen, "dropped": len(dropped)}

    (row,) = numbered(spark, 1, decide, "path string, seen bigint, dropped bigint").collect()
    return row.path, row.seen, row.dropped


def _contested_claims(path: str) -> Iterator[tuple[int, bytes, bool]]:
    """Contested claims of one range, by offset: (offset, key, whether it would be consumed)."""
    claims = np.memmap(path, CLAIM, mode="r")
    for start in range(0, len(claims), _SORTED_ROWS):
        part = claims[start : start + _SORTED_ROWS]
        consumes = part["role"] & CONSUMES != 0
        yield from zip(part["offset"].tolist(), part["key"].tolist(), consumes.tolist(), strict=True)
