"""A log judged twice: by a replica's own code in order, and by the pipeline's functions in slices, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.jobs.verdicts import OUTCOMES
from pipeline.judging.claims import CLAIM, CONSUMES, borders_between, by_range, claims_of, in_order, sample_keys, taken
from pipeline.judging.columns import Columns, decode
from pipeline.judging.commands import COMMAND, acceptances, by_width, commands_of, rows, shared
from pipeline.judging.commands import key_values as acceptance_values
from pipeline.judging.contested import Resolved, contested
from pipeline.judging.contested import resolve as resolve_contenders
from pipeline.judging.cursor import Array
from pipeline.judging.entries import entries, exceptions, key_values
from pipeline.judging.keys import barred, exceptions_of
from pipeline.judging.lost import lost_claims, lost_commands, lost_parties, lost_ranges
from pipeline.judging.marks import offsets_marked
from pipeline.judging.plan import Plan, Survey, counted, make_plan, survey, void_reasons
from pipeline.judging.reasons import DEDUPLICATED, DUPLICATE, EXCEPTION
from pipeline.tables.dense import decisions_of, dense_of, judged_of, records_of, rows_of_few, rows_of_stretch
from pipeline.tables.rows import SCHEMAS
from pipeline.tables.write import OrderedJudge, TablesWriter
from replica.following.apply import Applier
from replica.index.memory import MemoryIndex
from replica.notary.counted import CountedNote, CountedRequest
from replica.notary.position import Position, begin
from replica.notary.rules import Outcome
from replica.notary.salvage import NO_SALVAGES, OF_COMMANDS, OF_PARTIES, OF_STATES, Salvages, of_kinds

TOPIC = "topic-1"


@dataclass(slots=True)
class Judged:
    """What a log amounts to."""

    index: list[tuple[bytes, bytes]] = field(default_factory=list)  # in key order
    commands: list[tuple[bytes, bytes]] = field(default_factory=list)  # acceptances in key order
    parties: list[tuple[bytes, bytes]] = field(default_factory=list)  # officers and registrations in key order
    position: Position | None = None
    verdicts: dict[int, tuple[Outcome, int | None]] = field(default_factory=dict)  # of counting requests
    judged_us: dict[int, int] = field(default_factory=dict)  # of all that counts and has an effect
    voids: list[tuple[int, str]] = field(default_factory=list)

    @property
    def entries(self) -> list[tuple[bytes, bytes]]:
        """Of all kinds, in key order."""
        return sorted([*self.index, *self.commands, *self.parties])


def plan_of(slices: Sequence[Columns], topic_id: str = TOPIC, salvages: Salvages = NO_SALVAGES) -> Plan:
    """The plan of slices that are all at hand."""
    of = {columns.first_offset: columns for columns in slices}

    def look_again(plan: Plan, firsts: list[int]) -> list[Survey]:
        return [survey(of[first], plan) for first in firsts]

    lost = lost_parties(chain(*map(lost_ranges, slices)), salvages)
    return make_plan(begin(topic_id), map(survey, slices), look_again, lost)


def by_replica(values: Sequence[bytes], cuts: Sequence[int] = (), salvages: Salvages = NO_SALVAGES) -> Judged:
    """By the code that a live replica applies the log with, in runs that end at the cuts."""
    judged, applier = Judged(), Applier(MemoryIndex(), TOPIC, salvages)
    for start, end in _runs(len(values), cuts):
        applied = applier.apply(list(enumerate(values))[start:end])
        judged.voids += [(void.offset, void.reason.value) for void in applied.reading.voids]
        for entry, verdict in applied.decided():
            if not isinstance(entry, CountedNote):
                judged.judged_us[entry.offset] = entry.judged_us
            if isinstance(entry, CountedRequest) and verdict is not None:
                judged.verdicts[entry.offset] = verdict.outcome, verdict.notarised_offset
    judged.position = applier.position
    entries = dict(applier.index.entries())
    judged.index, judged.commands, judged.parties = (
        list(of_kinds(entries, kinds).items()) for kinds in (OF_STATES, OF_COMMANDS, OF_PARTIES)
    )
    return judged


class Rows:
    """A table that is kept in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.offset = -1

    def append(self, rows: pa.Table, offset: int) -> None:
        self.rows += rows.to_pylist()
        self.offset = offset


def by_tables(values: Sequence[bytes], cuts: Sequence[int] = (), salvages: Salvages = NO_SALVAGES) -> dict[str, Rows]:
    """The rows that the tables' job appends, in runs that end at the cuts."""
    tables = {name: Rows() for name in SCHEMAS}
    judge = OrderedJudge(MemoryIndex(), begin(TOPIC), salvages)
    writer = TablesWriter(tables, judge, lambda name: None)  # type: ignore[arg-type]
    for start, end in _runs(len(values), cuts):
        writer.append(list(enumerate(values))[start:end])
    return tables


def by_dense_tables(
    values: Sequence[bytes],
    cuts: Sequence[int] = (),
    tasks: Sequence[int] = (),
    salvages: Salvages = NO_SALVAGES,
) -> dict[str, Rows]:
    """The same rows, made as the job on Spark does: the log is decoded in stretches that end at `tasks`, judged from
    dense columns in runs that end at the cuts, and its rows are made in stretches again."""
    tables = {name: Rows() for name in SCHEMAS}
    judge = OrderedJudge(MemoryIndex(), begin(TOPIC), salvages)
    for start, end in _runs(len(values), cuts):
        stretches = [(first, last) for first, last in _runs(end, sorted({*tasks, start})) if first >= start]
        dense = pa.Table.from_batches([dense_of(range(*one), values[slice(*one)]) for one in reversed(stretches)])
        judged = judged_of(judge, records_of(dense))
        decisions = decisions_of(judged)
        of_tasks = [rows_of_stretch(decisions, [(at, values[at]) for at in range(*one)]) for one in stretches]
        for made in [*of_tasks, rows_of_few(judged)]:
            for name, table in tables.items():
                table.append(made[name], judged.offset)
        judge.advance(judged)
    return tables


def in_slices(
    values: Sequence[bytes],
    cuts: Sequence[int] = (),
    buckets: int = 4,
    resolve: Callable[[Array, Array], Resolved] | None = None,
    *,
    salvages: Salvages = NO_SALVAGES,
) -> Judged:
    """By the pipeline's functions, with the log cut into slices and the keys into ranges."""
    judged = Judged()
    slices = [decode(start, pa.array(values[start:end], pa.binary())) for start, end in _runs(len(values), cuts)]
    plan = plan_of(slices, salvages=salvages)
    borders = borders_between([key for columns in slices for key in sample_keys(columns, 8)], buckets)
    parts: list[list[Array]] = [[] for _ in range(len(borders) + 1)]
    against: list[Array] = []
    command_parts: list[list[Array]] = [[] for _ in range(buckets)]
    for columns in reversed(slices):  # they come in any order
        found = counted(columns, plan)
        judged.voids += [(at, reason.value) for at, reason in void_reasons(columns, found, plan)]
        offsets = (columns.first_offset + columns.rows[found.requests]).tolist()
        judged.verdicts |= {offset: (Outcome.NOTARISED, offset) for offset in offsets}
        judged.judged_us |= dict(zip(offsets, found.judged_us.tolist(), strict=True))
        of_keys = barred(columns, found, plan)
        against.append(exceptions_of(columns, found, of_keys))
        claims, starts = by_range(claims_of(columns, found, of_keys), borders)
        for part, (start, end) in zip(parts, pairwise(starts.tolist()), strict=True):
            part.append(claims[start:end])
        of_slice, starts = by_width(commands_of(columns, found, of_keys), buckets)
        for part, (start, end) in zip(command_parts, pairwise(starts.tolist()), strict=True):
            part.append(of_slice[start:end])
    accepted, starts = by_width(lost_commands(chain(*map(lost_ranges, slices)), salvages), buckets)
    for part, (start, end) in zip(command_parts, pairwise(starts.tolist()), strict=True):
        part.append(accepted[start:end])
    lost, starts = by_range(lost_claims(chain(*map(lost_ranges, slices)), salvages), borders)
    for part, (start, end) in zip(parts, pairwise(starts.tolist()), strict=True):
        part.append(lost[start:end])
    ranges = [_joined(part) for part in parts]
    disputed = _joined([contested(claims, in_order(claims)) for claims in ranges])
    widths = [_sorted(_joined(part, COMMAND)) for part in command_parts]
    resolved = (resolve or resolve_exactly)(disputed, _joined([shared(part) for part in widths], COMMAND))
    dropped = offsets_marked(resolved.dropped, len(values))
    ranges = [taken(claims, in_order(claims)) for claims in ranges]
    for claims in ranges:
        found_entries = entries(claims, dropped)
        judged.index += key_values(found_entries)
        against.append(exceptions(claims, found_entries))
    found_against = np.concatenate([np.array(resolved.by_command, EXCEPTION), *against]).tolist()
    for offset, reason, notarised_offset in sorted(found_against, reverse=True):  # the lowest reason stays
        judged.verdicts[offset] = OUTCOMES[reason], notarised_offset if reason in (DUPLICATE, DEDUPLICATED) else None
    unusual = offsets_marked(resolved.unusual, len(values))
    accepted = [acceptances(part, unusual) for part in widths]
    judged.commands = [entry for part in accepted for entry in acceptance_values(part)]
    judged.voids.sort()
    judged.position, judged.parties = plan.position, sorted(plan.parties.items())
    return judged


def _joined(parts: list[Array], dtype: np.dtype[Any] = CLAIM) -> Array:
    return np.frombuffer(b"".join(part.tobytes() for part in parts), dtype)


def _sorted(found: Array) -> Array:
    return taken(found, in_order(found))


def resolve_exactly(claims: Array, commands: Array) -> Resolved:
    """Of contested claims and shared commands in any order."""
    columns = [claims[name].tolist() for name in ("offset", "key", "role", "stands")]
    of_claims = [(offset, (key, role, stands)) for offset, key, role, stands in zip(*columns, strict=True)]
    return resolve_contenders(sorted([*of_claims, *rows(commands)], key=itemgetter(0)))


def resolve_naively(claims: Array, _: Array) -> Resolved:
    """The mutant: the first to name a state has it, whatever becomes of its request."""
    first: dict[bytes, int] = {}
    dropped = set()
    for offset, key, takes in sorted((int(r["offset"]), bytes(r["key"]), bool(r["role"] & CONSUMES)) for r in claims):
        if first.setdefault(key, offset) != offset:
            dropped.add(offset)
        elif not takes:
            del first[key]
    return Resolved(sorted(dropped), [], [], 0)


def _runs(count: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
    edges = sorted({0, count, *[cut for cut in cuts if cut < count]})
    return list(pairwise(edges))
