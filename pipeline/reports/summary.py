"""What a report is made of: sums that add up, so that a longer log's report needs only what came since. Pure.

A summary has four small tables. Two summaries of neighbouring stretches of a log, added up, are the summary of both,
byte for byte and wherever the log was cut: all values are whole numbers, and rows are in the order of their keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import gcd
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.reports.intervals import NICE_S, interval_s
from replica.notary.codes import Code
from replica.notary.errors import InvariantBroken
from replica.notary.outcomes import NOTARISED
from replica.notary.rules import Usage

Summary = Mapping[str, pa.Table]
LOAD, PARTIES, STATES, ACTIVATIONS = "load", "parties", "states", "activations"


class _Kind(NamedTuple):
    keys: tuple[tuple[str, pa.DataType], ...]
    values: tuple[tuple[str, str], ...]  # whole numbers, and how two of them become one

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([*self.keys, *[(name, pa.int64()) for name, _ in self.values]])


_SPAN = (("first_us", "min"), ("last_us", "max"))
_KINDS = {
    LOAD: _Kind(
        (("start_s", pa.int64()), ("outcome", pa.string())),
        (("requests", "sum"), ("repeated", "sum"), ("states", "sum")),
    ),
    PARTIES: _Kind(
        (("party", pa.string()), ("public_key", pa.binary())),
        (("requests", "sum"), ("notarised", "sum"), ("conflicts", "sum"), ("states", "sum"), *_SPAN),
    ),
    STATES: _Kind(
        (("state", pa.string()), ("party", pa.string())),
        (("refused", "sum"), ("as_reference", "sum"), ("consumed_at", "min")),
    ),
    ACTIVATIONS: _Kind((("from_offset", pa.int64()),), (("requests", "sum"), *_SPAN)),
}  # fmt: skip
SCHEMAS = {name: kind.schema for name, kind in _KINDS.items()}
EMPTY: Summary = {name: schema.empty_table() for name, schema in SCHEMAS.items()}


def summary_of(requests: pa.Table, verdicts: pa.Table, conflicts: pa.Table, barriers: Sequence[int]) -> Summary:
    """The summary of a stretch of a log. In: rows of the tables in the lake, in any order.

    requests: `offset`, `stamp_at`, `party`, `public_key`, `inputs`, `references`. verdicts: `offset`, `outcome`,
    `notarised_offset`. conflicts: `offset`, `state`, `usage`, `consumed_at`. `barriers`: offsets of all barriers in
    force up to the end of the stretch, ascending. Raises InvariantBroken when a request has not exactly one verdict, or
    when conflicts are missing, double or without a refused request.
    """
    rows = _decided(requests, verdicts)
    return _tidy(
        {
            LOAD: rows.append_column("start_s", pa.array(rows["stamp_us"].to_numpy() // 1_000_000)),
            PARTIES: rows.append_column("first_us", rows["stamp_us"]).append_column("last_us", rows["stamp_us"]),
            STATES: _refused(rows, conflicts),
            ACTIVATIONS: _led(rows, barriers),
        }
    )


def merged(parts: Sequence[Summary]) -> Summary:
    """The summary of some stretches together."""
    return _tidy({name: pa.concat_tables([part[name] for part in parts]) for name in _KINDS})


def span_us(summary: Summary) -> tuple[int, int] | None:
    """The lowest and the highest stamp, microseconds; None without requests."""
    parties = summary[PARTIES]
    if not len(parties):
        return None
    return pc.min(parties["first_us"]).as_py(), pc.max(parties["last_us"]).as_py()


def _decided(requests: pa.Table, verdicts: pa.Table) -> pa.Table:
    """A row for each request, by offset, with its verdict as numbers that add up."""
    states = pc.add(pc.list_value_length(requests["inputs"]), pc.list_value_length(requests["referenced_states"]))
    narrow = requests.select(["log_offset", "stamp_at", "party", "public_key"]).append_column("states", states)
    narrow, verdicts = narrow.sort_by("log_offset"), verdicts.sort_by("log_offset")
    if not narrow["log_offset"].equals(verdicts["log_offset"]) or pc.count_distinct(
        narrow["log_offset"]
    ).as_py() != len(narrow):
        raise InvariantBroken("the tables do not have one verdict for each request: rows were deleted, or added twice")
    outcome = verdicts["outcome"]
    repeated = pc.fill_null(pc.not_equal(verdicts["notarised_offset"], verdicts["log_offset"]), False)
    return pa.table(
        {
            "log_offset": narrow["log_offset"],
            "stamp_us": narrow["stamp_at"].cast(pa.int64()),
            "party": narrow["party"],
            "public_key": narrow["public_key"],
            "states": narrow["states"].cast(pa.int64()),
            "outcome": outcome,
            "requests": pa.chunked_array([np.ones(len(narrow), np.int64)]),
            "repeated": repeated.cast(pa.int64()),
            "notarised": pc.equal(outcome, NOTARISED).cast(pa.int64()),
            "conflicts": pc.equal(outcome, Code.STATE_CONFLICT.name).cast(pa.int64()),
        }
    )


def _refused(rows: pa.Table, conflicts: pa.Table) -> pa.Table:
    refused = rows.filter(pc.equal(rows["conflicts"], 1))["log_offset"].to_numpy()
    rows_of_conflicts = conflicts.select(["log_offset", "state", "usage"])
    distinct = rows_of_conflicts.group_by(rows_of_conflicts.column_names).aggregate([])
    if len(distinct) != len(conflicts) or not np.array_equal(np.unique(conflicts["log_offset"].to_numpy()), refused):
        raise InvariantBroken("the tables do not have the states in the way of each refused request, each of them once")
    at = np.searchsorted(rows["log_offset"].to_numpy(), conflicts["log_offset"].to_numpy())
    return pa.table(
        {
            "state": conflicts["state"],
            "party": rows["party"].take(pa.array(at)),
            "refused": pa.array(np.ones(len(conflicts), np.int64)),
            "as_reference": pc.equal(conflicts["usage"], Usage.REFERENCE.value).cast(pa.int64()),
            "consumed_at": conflicts["consumed_offset"],
        }
    )


def _led(rows: pa.Table, barriers: Sequence[int]) -> pa.Table:
    """A row for each request, with the offset of the barrier that was in force."""
    offsets = np.asarray(barriers, np.int64)
    at = np.searchsorted(offsets, rows["log_offset"].to_numpy()) - 1
    if len(at) and at.min() < 0:
        raise InvariantBroken("the tables have a request before the first barrier in force")
    return pa.table(
        {
            "from_offset": pa.array(offsets[at] if len(at) else offsets[:0]),
            "requests": rows["requests"],
            "first_us": rows["stamp_us"],
            "last_us": rows["stamp_us"],
        }
    )


def _tidy(tables: Mapping[str, pa.Table]) -> Summary:
    """Rows of one key together, in the order of keys; times of load no finer than a report may still need."""
    summed = {name: _summed(tables[name], kind) for name, kind in _KINDS.items() if name != LOAD}
    span = span_us(summed)
    step_s = 1 if span is None else _coarsest_s(interval_s(*span))
    load = tables[LOAD]
    starts = load["start_s"].to_numpy() // step_s * step_s
    at = load.schema.get_field_index("start_s")
    return {LOAD: _summed(load.set_column(at, "start_s", pa.array(starts, pa.int64())), _KINDS[LOAD])} | summed


def _coarsest_s(seconds: int) -> int:
    """The longest interval of which this and all longer intervals of reports are made: a log's span only grows."""
    return reduce(gcd, [seconds, *[nice for nice in NICE_S if nice > seconds]])


def _summed(table: pa.Table, kind: _Kind) -> pa.Table:
    keys = [name for name, _ in kind.keys]
    sums = table.group_by(keys, use_threads=False).aggregate(list(kind.values))
    renamed = sums.rename_columns([name.removesuffix(f"_{how}") for name, how in _results(sums, kind)])
    ordered = renamed.select(kind.schema.names).sort_by([(name, "ascending") for name in keys])
    return ordered.cast(kind.schema).combine_chunks()


def _results(sums: pa.Table, kind: _Kind) -> list[tuple[str, str]]:
    how = {f"{name}_{how}": how for name, how in kind.values}
    return [(name, how.get(name, "")) for name in sums.column_names]
