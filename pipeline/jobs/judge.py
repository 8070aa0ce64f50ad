"""Judges a whole log on Spark: the plan of what counts, the claims by ranges of keys, and the requests that lose.

1. Survey each slice; the plan follows on the driver, from a few hundred bytes for each slice.
2. Claims of each slice, in packs, through one shuffle to ranges of keys; each range is sorted into a file.
3. One task goes through the claims on contested keys in log order, and writes down who gets nothing.

What follows, index or verdicts, needs each range's file and the list of the losers, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import Batches, attempt_file, numbered
from pipeline.judging.claims import (
    CLAIM,
    CONSUMES,
    borders_between,
    claims_of,
    packs,
    sample_keys,
    unpack,
)
from pipeline.judging.columns import Array
from pipeline.judging.contested import Resolver, contested
from pipeline.judging.plan import Plan, Survey, counted, make_plan, survey

RANGE_BYTES = 64 << 20  # of claims that one task sorts; it needs about five times as much memory
SAMPLED_KEYS = 1 << 16  # of the whole log, to part the keys by
_SORTED_ROWS = 1 << 16  # of contested claims that are in memory at a time, for each range


class Judged(msgspec.Struct, frozen=True):
    """A judged log: files in the work folder that any worker can read, and the plan.

    `ranges`: claims on each range of keys, in order, as arrays of CLAIM; None for a range nobody claims. `dropped`:
    offsets, ascending, of the requests that get nothing for a contested key.
    """

    plan: Plan
    slice_ends: tuple[int, ...]  # the offset behind each slice
    ranges: tuple[str | None, ...]
    dropped: str
    claim_count: int
    contested_count: int
    dropped_count: int

    def claims(self, number: int) -> Array:
        """The claims on one range of keys, by key and offset."""
        path = self.ranges[number]
        return np.zeros(0, CLAIM) if path is None else np.fromfile(path, CLAIM)

    def dropped_offsets(self) -> Array:
        """Who gets nothing; stays on disk as far as it is not looked at."""
        offsets: Array = np.load(self.dropped, mmap_mode="r")
        return offsets


def judge_log(
    spark: SparkSession, log: LogSlices, work: Path, *, closed: bool = False, ranges: int | None = None
) -> Judged:
    """Judge all records of a log. `closed`: keep the claims of requests outside their window, which verdicts need.

    `work`: a folder that every worker reaches. `ranges`: how many ranges of keys; by default as many as need at most
    RANGE_BYTES each. Raises InvariantBroken on a gap, FormatUnknown, and what the slices raise.
    """
    work.mkdir(parents=True, exist_ok=True)
    plan, ends, samples, claim_count = plan_log(spark, log)
    wanted = ranges or max(1, -(-claim_count * CLAIM.itemsize // RANGE_BYTES))
    files, contested_files = _sort_claims(spark, log, plan, borders_between(samples, wanted), work, closed=closed)
    dropped, contested_count, dropped_count = _resolve(spark, contested_files, work)
    return Judged(plan, ends, files, dropped, claim_count, contested_count, dropped_count)


def plan_log(spark: SparkSession, log: LogSlices) -> tuple[Plan, tuple[int, ...], list[bytes], int]:
    """The plan for a log, where its slices end, a sample of the keys that are claimed, and how many claims at most."""
    per_slice = max(8, SAMPLED_KEYS // max(1, len(log)))

    def look(number: int) -> Iterator[dict[str, Any]]:
        columns = log.read(number)
        if len(columns):
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
    plan, again = make_plan(log.topic_id, surveys.values())
    if again:
        numbers = [number for number, found in surveys.items() if found.first_offset in set(again)]
        surveys |= _survey_again(spark, log, plan, numbers)
        plan, _ = make_plan(log.topic_id, surveys.values())
    ends = tuple(surveys[number].end_offset for number in sorted(surveys))
    return plan, ends, samples, claim_count


def _survey_again(spark: SparkSession, log: LogSlices, plan: Plan, numbers: list[int]) -> dict[int, Survey]:
    def look(at: int) -> Iterator[dict[str, Any]]:
        columns = log.read(numbers[at])
        found = msgspec.msgpack.encode(survey(columns, plan.rules_of(columns)))
        yield {"number": numbers[at], "survey": found}

    rows = numbered(spark, len(numbers), look, "number bigint, survey binary").collect()
    return {row.number: msgspec.msgpack.decode(row.survey, type=Survey) for row in rows}


def _sort_claims(
    spark: SparkSession, log: LogSlices, plan: Plan, borders: Array, work: Path, *, closed: bool
) -> tuple[tuple[str | None, ...], list[str]]:
    def claim(number: int) -> Iterator[dict[str, Any]]:
        columns = log.read(number)
        found = counted(columns, plan.rules_of(columns))
        for bucket, pack in packs(claims_of(columns, found, closed=closed), borders):
            yield {"bucket": bucket, "pack": pack}

    def sort(batches: Batches) -> Batches:
        import pyarrow as pa

        found: dict[int, list[bytes]] = {}
        for batch in batches:
            for bucket, pack in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                found.setdefault(bucket, []).append(pack.as_buffer())
        for bucket in sorted(found):
            claims = unpack(found.pop(bucket))
            path = attempt_file(work, f"range-{bucket:05d}", ".claims")
            claims.tofile(path)
            disputed = contested(claims)
            disputed = disputed.take(np.argsort(disputed["offset"], kind="stable"))
            disputed_path = ""
            if len(disputed):
                disputed_path = str(attempt_file(work, f"range-{bucket:05d}", ".contested"))
                disputed.tofile(disputed_path)
            yield pa.RecordBatch.from_pylist([{"bucket": bucket, "path": str(path), "contested": disputed_path}])

    count = len(borders) + 1
    packed = numbered(spark, len(log), claim, "bucket bigint, pack binary")
    placed = packed.repartitionById(count, packed.bucket.cast("int"))
    rows = placed.mapInArrow(sort, "bucket bigint, path string, contested string").collect()
    files: list[str | None] = [None] * count
    for row in rows:
        files[row.bucket] = row.path
    return tuple(files), [row.contested for row in rows if row.contested]


def _resolve(spark: SparkSession, files: list[str], work: Path) -> tuple[str, int, int]:
    """One task, in log order; the driver learns only how many there were."""

    def decide(_: int) -> Iterator[dict[str, Any]]:
        path = attempt_file(work, "dropped", ".npy")
        resolver, seen, dropped = Resolver(), 0, []
        claims = merge(*[_contested_claims(file) for file in files], key=itemgetter(0))
        for offset, rows in groupby(claims, key=itemgetter(0)):
            keys = [(key, consumes) for _, key, consumes in rows]
            seen += len(keys)
            dropped += resolver.dropped([(offset, keys)])
        np.save(path, np.array(dropped, np.int64))
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
