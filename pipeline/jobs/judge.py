"""Judges a whole log on Spark: the plan of what counts, the claims by ranges of keys, and the requests that lose.

1. Survey each slice; the plan follows on the driver, from a few hundred bytes for each slice.
2. Write the claims of each slice, range by range of keys. Sort each range, and find the contested keys in it. Do
   the same with commands, in ranges of their own.
3. One task reads what is contested in log order, and lists the requests that lose.

The next job (index or verdicts) needs only the slices' files, each range's order and the list of the losers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import merge
from itertools import chain
from operator import attrgetter, itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from pyspark.sql import SparkSession

from pipeline.jobs.exchange import free_ranges, read_range, write_parts
from pipeline.jobs.slices import LogSlices
from pipeline.jobs.tasks import attempt_file, numbered
from pipeline.judging.claims import (
    CLAIM,
    CLAIM_BYTES,
    borders_between,
    by_range,
    claims_of,
    in_order,
    sample_keys,
    taken,
)
from pipeline.judging.commands import COMMAND, COMMAND_BYTES, Command, by_width, commands_of, rows, shared
from pipeline.judging.contested import Claim, contested, resolve
from pipeline.judging.cursor import Array
from pipeline.judging.keys import barred, exceptions_of
from pipeline.judging.lost import LostRange, joined_ranges, lost_claims, lost_commands, lost_parties, lost_ranges
from pipeline.judging.marks import offsets_marked
from pipeline.judging.plan import Plan, Survey, counted, make_plan, survey
from pipeline.judging.reasons import EXCEPTION
from replica.notary.position import begin
from replica.notary.salvage import NO_SALVAGES, Salvages

RANGE_BYTES = 64 << 20  # of claims that one task sorts; it needs about five times as much memory
SAMPLED_KEYS = 1 << 16  # of the whole log, to part the keys by
_SORTED_ROWS = 1 << 16  # of contested claims that are in memory at a time, for each range


class Sorted(msgspec.Struct, frozen=True):
    """Rows of one type in files: those of each slice by ranges of keys (see `exchange`), and for each range a file with
    the places of its rows by key and offset."""

    parts: tuple[str, ...] = ()
    orders: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of ranges."""
        return len(self.orders)

    def rows(self, number: int, dtype: np.dtype[Any]) -> Array:
        """The rows of one range, by key and offset."""
        return taken(read_range(self.parts, number, dtype), np.fromfile(self.orders[number], np.uint32))

    def free(self, first: int, end: int) -> None:
        """Give the disk back what the ranges from `first` to before `end` take: nobody reads them any more."""
        free_ranges(self.parts, first, end)
        for path in self.orders[first:end]:
            Path(path).unlink(missing_ok=True)


class Judged(msgspec.Struct, frozen=True):
    """A judged log: files in the work folder that any worker can read, and the plan.

    `dropped`: requests that get nothing of what they contested, as bits of `offsets_marked`. `unusual`, see
    `commands.acceptances`, as bits; `by_command`, what stands against requests because of their commands, an array of
    EXCEPTION. `barred`: files of what stands against requests because
    of their keys, likewise. `lost`: the log's lost ranges; `lost_claims`: a file with their claims, an array of CLAIM.
    """

    plan: Plan
    slice_ends: tuple[int, ...]  # the offset after each slice
    by_key: Sorted
    dropped: str
    commands: Sorted
    unusual: str
    by_command: str
    barred: tuple[str, ...]
    claim_count: int
    contested_count: int
    dropped_count: int
    lost: tuple[LostRange, ...] = ()
    lost_claims: str = ""  # empty where nothing is lost

    def claims(self, number: int) -> Array:
        """The claims on one range of keys, by key and offset."""
        return self.by_key.rows(number, CLAIM)

    def dropped_marks(self) -> Array:
        """The requests that lose, as bits; mapped from disk, so only the parts in use are in memory."""
        marks: Array = np.load(self.dropped, mmap_mode="r")
        return marks

    def unusual_marks(self) -> Array:
        """Likewise the requests that are accepted though outside their window, or not accepted though inside."""
        marks: Array = np.load(self.unusual, mmap_mode="r")
        return marks


def judge_log(
    spark: SparkSession,
    log: LogSlices,
    work: Path,
    *,
    salvages: Salvages = NO_SALVAGES,
    ranges: int | None = None,
) -> Judged:
    """Judge all records of a log. `salvages`: those that lost records name.

    `work`: a folder that every worker reaches. `ranges`: how many ranges of keys; by default as many as need at most
    RANGE_BYTES each. Raises InvariantBroken on a gap, FormatUnknown, SalvageMissing, IndexMismatch (see lost.py), and
    what the slices raise.
    """
    work.mkdir(parents=True, exist_ok=True)
    surveyed = plan_log(spark, log, salvages)
    lost = surveyed.lost
    of_lost = lost_claims(lost, salvages)
    plan, claim_count = surveyed.plan, surveyed.claim_count + len(of_lost)
    borders = borders_between(surveyed.samples, ranges or _ranges(claim_count * CLAIM_BYTES))
    widths = ranges or _ranges(surveyed.request_count * COMMAND_BYTES)
    files = _write_rows(spark, log, plan, borders, work, widths=widths)
    claim_files = files.claims
    lost_path = ""
    if lost:
        lost_path = str(attempt_file(work, "lost", ".npy"))
        np.save(lost_path, of_lost)
        path = attempt_file(work, "lost", ".claims")
        write_parts(path, *by_range(of_lost, borders))
        claim_files = (*claim_files, str(path))
    command_files = files.commands
    if len(accepted := lost_commands(lost, salvages)):
        path = attempt_file(work, "lost", ".commands")
        write_parts(path, *by_width(accepted, widths))
        command_files = (*command_files, str(path))
    orders, contested_files = _order_claims(spark, claim_files, len(borders) + 1, work)
    command_orders, shared_files = _order_commands(spark, command_files, widths, work)
    resolved = _resolve(spark, contested_files, shared_files, plan.position.offset + 1, work)
    return Judged(
        plan,
        surveyed.slice_ends,
        Sorted(claim_files, orders),
        resolved.dropped,
        Sorted(command_files, command_orders),
        resolved.unusual,
        resolved.by_command,
        files.barred,
        claim_count,
        resolved.seen,
        resolved.dropped_count,
        tuple(lost),
        lost_path,
    )


def _ranges(size: int) -> int:
    return max(1, -(-size // RANGE_BYTES))


_Look = tuple[Survey, list[bytes], list[LostRange]]
"""Of one slice: its survey, some of the keys claimed there, and its lost records."""


class Surveyed(msgspec.Struct, frozen=True):
    """A log's plan, where its slices end, a sample of the keys that are claimed, how many claims and requests there
    are at most, and the lost records."""

    plan: Plan
    slice_ends: tuple[int, ...]
    samples: list[bytes]
    claim_count: int
    request_count: int
    lost: list[LostRange]


def plan_log(spark: SparkSession, log: LogSlices, salvages: Salvages = NO_SALVAGES) -> Surveyed:
    """Survey all slices of a log. Raises SalvageMissing for a lost record whose salvage is not among these."""
    per_slice = max(8, SAMPLED_KEYS // max(1, len(log)))

    def look(number: int) -> Iterator[dict[str, Any]]:
        columns = log.read(number)
        if len(columns):
            states = int((columns.inputs_n + columns.references_n).sum())
            found = msgspec.msgpack.encode((survey(columns), sample_keys(columns, per_slice), lost_ranges(columns)))
            yield {"number": number, "survey": found, "requests": len(columns.rows), "states": states}

    surveys: dict[int, Survey] = {}
    samples: list[bytes] = []
    lost: list[LostRange] = []
    request_count = state_count = 0
    for row in numbered(
        spark, len(log), look, "number bigint, survey binary, requests bigint, states bigint"
    ).collect():
        surveys[row.number], keys, lost_here = msgspec.msgpack.decode(row.survey, type=_Look)
        samples += keys
        lost += lost_here
        request_count += row.requests
        state_count += row.states
    number_of = {found.first_offset: number for number, found in surveys.items()}

    def look_again(plan: Plan, firsts: list[int]) -> Iterator[Survey]:
        return _survey_again(spark, log, plan, [number_of[first] for first in firsts])

    lost = joined_ranges(lost)
    plan = make_plan(begin(log.topic_id), surveys.values(), look_again, lost_parties(lost, salvages))
    ends = tuple(surveys[number].end_offset for number in sorted(surveys))
    return Surveyed(plan, ends, samples, request_count + state_count, request_count, lost)


def _survey_again(spark: SparkSession, log: LogSlices, plan: Plan, numbers: list[int]) -> Iterator[Survey]:
    def look(at: int) -> Iterator[dict[str, Any]]:
        columns = log.read(numbers[at])
        found = msgspec.msgpack.encode(survey(columns, plan))
        yield {"survey": found}

    for row in numbered(spark, len(numbers), look, "survey binary").collect():
        yield msgspec.msgpack.decode(row.survey, type=Survey)


class _Files(NamedTuple):
    """Files of slices: their claims, their commands, and what stands against requests because of their keys."""

    claims: tuple[str, ...]
    commands: tuple[str, ...]
    barred: tuple[str, ...]


def _write_rows(spark: SparkSession, log: LogSlices, plan: Plan, borders: Array, work: Path, *, widths: int) -> _Files:
    """A file of claims for each slice, and one of commands, in so many ranges."""

    def write(number: int) -> Iterator[dict[str, Any]]:
        columns = log.read(number)
        found = counted(columns, plan)
        against = barred(columns, found, plan)
        path = attempt_file(work, f"slice-{number:05d}", ".claims")
        write_parts(path, *by_range(claims_of(columns, found, against), borders))
        commands_path = attempt_file(work, f"slice-{number:05d}", ".commands")
        write_parts(commands_path, *by_width(commands_of(columns, found, against), widths))
        barred_path = ""
        if np.any(against):
            barred_path = str(attempt_file(work, f"slice-{number:05d}-barred", ".npy"))
            np.save(barred_path, exceptions_of(columns, found, against))
        yield {"number": number, "path": str(path), "commands": str(commands_path), "barred": barred_path}

    found = numbered(spark, len(log), write, "number bigint, path string, commands string, barred string").collect()
    ordered = sorted(found, key=attrgetter("number"))
    return _Files(
        tuple(row.path for row in ordered),
        tuple(row.commands for row in ordered),
        tuple(row.barred for row in ordered if row.barred),
    )


def _order_claims(
    spark: SparkSession, parts: tuple[str, ...], ranges: int, work: Path
) -> tuple[tuple[str, ...], list[str]]:
    """For each range, the order of its claims; and the files with those that are contested, by offset."""

    def order(number: int) -> Iterator[dict[str, Any]]:
        claims = read_range(parts, number, CLAIM)
        places = in_order(claims)
        disputed = contested(claims, places)
        yield {"number": number, **_order_files(work, f"range-{number:05d}", places, disputed)}

    return _ordered(spark, ranges, order)


def _order_commands(
    spark: SparkSession, parts: tuple[str, ...], ranges: int, work: Path
) -> tuple[tuple[str, ...], list[str]]:
    """For each range, the order of its commands; and the files with those that are shared, by offset."""

    def order(number: int) -> Iterator[dict[str, Any]]:
        commands = read_range(parts, number, COMMAND)
        places = in_order(commands)
        disputed = shared(taken(commands, places))
        yield {"number": number, **_order_files(work, f"commands-{number:05d}", places, disputed)}

    return _ordered(spark, ranges, order)


def _order_files(work: Path, name: str, places: Array, disputed: Array) -> dict[str, str]:
    path = attempt_file(work, name, ".order")
    places.astype(np.uint32).tofile(path)
    disputed_path = ""
    if len(disputed):
        disputed_path = str(attempt_file(work, name, ".contested"))
        taken(disputed, np.argsort(disputed["offset"], kind="stable")).tofile(disputed_path)
    return {"path": str(path), "contested": disputed_path}


def _ordered(
    spark: SparkSession, ranges: int, order: Callable[[int], Iterator[dict[str, Any]]]
) -> tuple[tuple[str, ...], list[str]]:
    found = numbered(spark, ranges, order, "number bigint, path string, contested string").collect()
    ordered = sorted(found, key=attrgetter("number"))
    return tuple(row.path for row in ordered), [row.contested for row in ordered if row.contested]


class _ResolvedFiles(msgspec.Struct, frozen=True):
    """Files of what was resolved, see Judged; how many contested claims were seen, and how many requests dropped."""

    dropped: str
    unusual: str
    by_command: str
    seen: int
    dropped_count: int


def _resolve(
    spark: SparkSession, claim_files: list[str], command_files: list[str], end_offset: int, work: Path
) -> _ResolvedFiles:
    """One task, in log order; the driver learns only how many there were."""

    def decide(_: int) -> Iterator[dict[str, Any]]:
        paths = [attempt_file(work, name, ".npy") for name in ("dropped", "unusual", "by-command")]
        files = [_contested_claims(file) for file in claim_files] + [_shared_commands(file) for file in command_files]
        resolved = resolve(merge(*files, key=itemgetter(0)))
        np.save(paths[0], offsets_marked(resolved.dropped, end_offset))
        np.save(paths[1], offsets_marked(resolved.unusual, end_offset))
        np.save(paths[2], np.array(resolved.by_command, EXCEPTION))
        dropped_path, unusual_path, by_command_path = map(str, paths)
        yield {
            "dropped": dropped_path,
            "unusual": unusual_path,
            "by_command": by_command_path,
            "seen": resolved.seen,
            "dropped_count": len(resolved.dropped),
        }

    schema = "dropped string, unusual string, by_command string, seen bigint, dropped_count bigint"
    (row,) = numbered(spark, 1, decide, schema).collect()
    return _ResolvedFiles(**row.asDict())


def _contested_claims(path: str) -> Iterator[tuple[int, Claim | Command]]:
    """Contested claims of one range, by offset: (offset, (key, role, what the key would stand for))."""
    for part in _parts(path, CLAIM):
        claims = zip(part["key"].tolist(), part["role"].tolist(), part["stands"].tolist(), strict=True)
        yield from zip(part["offset"].tolist(), claims, strict=True)


def _shared_commands(path: str) -> Iterator[tuple[int, Claim | Command]]:
    """Shared commands of one range, by offset."""
    return chain.from_iterable(map(rows, _parts(path, COMMAND)))


def _parts(path: str, dtype: np.dtype[Any]) -> Iterator[Array]:
    mapped = np.memmap(path, dtype, mode="r")
    for start in range(0, len(mapped), _SORTED_ROWS):
        yield mapped[start : start + _SORTED_ROWS]
