"""Traces who submitted what and when from the tables in the lake, without Spark.

It shows what pipeline/audit/trace.py shows of a request, but for the evidence: the tables have neither the record's
bytes nor the signature.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.judging.lost import lost_entry
from pipeline.tables.read import TablesView
from pipeline.tables.rows import CONFLICTS, EPOCHS, LOST, REQUESTS, SCHEMAS, VERDICTS
from replica.notary.codes import Code
from replica.notary.errors import InvariantBroken
from replica.notary.position import BEGIN
from replica.notary.requests import format_state_ref

STRETCH_RECORDS = 1 << 20  # that are in memory at a time
_REQUESTS = (
    *(
        "log_offset",
        "stamp_at",
        "tx_id",
        "content_digest",
        "inputs",
        "referenced_states",
        "party",
        "user_id",
        "command_id",
    ),
    *("submission_id", "public_key"),
)
_VERDICTS = ("log_offset", "judged_at", "outcome", "notarised_offset")
_CONFLICTS = ("log_offset", "state", "usage", "consumed_offset")
_EPOCHS = ("log_offset", "epoch", "replica")
_LOST = ("log_offset", "salvage", "tx_id", "content_digest", "inputs")


class TableSubject(NamedTuple):
    """What is of interest: the columns that say so, and the offsets of such rows among some of the table `requests`."""

    columns: tuple[str, ...]
    pick: Callable[[pa.Table], list[int]]


def of_tx(tx_id: bytes) -> TableSubject:
    """Requests under a transaction id."""
    return TableSubject(("log_offset", "tx_id"), lambda rows: _offsets(rows.filter(pc.equal(rows["tx_id"], tx_id))))


def of_party(name: str) -> TableSubject:
    """Requests of the party with this X.500 name."""
    return TableSubject(("log_offset", "party"), lambda rows: _offsets(rows.filter(pc.equal(rows["party"], name))))


def of_state(ref: bytes) -> TableSubject:
    """Requests that consume a state or refer to it."""
    text = format_state_ref(ref)

    def pick(rows: pa.Table) -> list[int]:
        naming = set[int]()
        for column in {"inputs", "referenced_states"} & set(rows.column_names):
            for chunk, offsets in _chunks(rows, column):
                parents = np.asarray(pc.list_parent_indices(chunk))
                named = np.asarray(pc.equal(pc.list_flatten(chunk), text))
                naming.update(offsets[parents[named]].tolist())
        return sorted(naming)

    return TableSubject(("log_offset", "inputs", "referenced_states"), pick)


def trace_tables(
    tables: TablesView, subject: TableSubject, limit: int, stretch_records: int = STRETCH_RECORDS
) -> list[dict[str, Any]]:
    """The first `limit` requests of interest, in log order; byte strings as hex, times in microseconds UTC.

    Reads only the columns that say what is of interest, until there are enough. Lost records are among them by what
    their salvage has. Raises PlaceUnavailable, and InvariantBroken when a table lacks what another one needs.
    """
    found: list[int] = []
    for start in range(BEGIN, tables.offset, stretch_records):
        until = min(start + stretch_records, tables.offset)
        kept = [column for column in subject.columns if column in SCHEMAS[LOST].names]
        lost = subject.pick(tables.rows(LOST, kept, start, until)) if len(kept) > 1 else []
        found += sorted([*subject.pick(tables.rows(REQUESTS, subject.columns, start, until)), *lost])
        if len(found) >= limit:
            break
    return _entries(tables, found[:limit])


def _entries(tables: TablesView, offsets: Sequence[int]) -> list[dict[str, Any]]:
    if not offsets:
        return []
    requests = _by_offset(tables, REQUESTS, _REQUESTS, offsets)
    verdicts = _by_offset(tables, VERDICTS, _VERDICTS, offsets)
    conflicts = _by_offset(tables, CONFLICTS, _CONFLICTS, offsets)
    consumed_at = {row["consumed_offset"] for rows in conflicts.values() for row in rows}
    lost = _by_offset(tables, LOST, _LOST, offsets)
    consumers: dict[int, list[dict[str, Any]]] = {}
    for name in (REQUESTS, LOST):
        consumers |= _by_offset(tables, name, ("log_offset", "tx_id"), sorted(consumed_at))
    epochs = tables.rows(EPOCHS, _EPOCHS, BEGIN).sort_by("log_offset").to_pylist()
    began = [epoch["log_offset"] for epoch in epochs]

    def entry(offset: int) -> dict[str, Any]:
        if offset in lost:
            ((row),) = lost[offset]
            return lost_entry(offset, row["salvage"], row["tx_id"], row["content_digest"], row["inputs"])
        asked, decided = requests[offset], verdicts.get(offset, [])
        in_the_way, epochs_before = conflicts.get(offset, []), bisect_left(began, offset)
        refused = [one["outcome"] == Code.STATE_CONFLICT.name for one in decided]
        if len(asked) != 1 or refused != [bool(in_the_way)] or not epochs_before:
            raise InvariantBroken(f"the tables do not agree about offset {offset}: rows were deleted, or added twice")
        return (
            _request(asked[0])
            | _in_force(epochs[epochs_before - 1])
            | _verdict(decided[0])
            | {"conflicts": [_conflict(row, consumers) for row in sorted(in_the_way, key=_in_order)]}
        )

    return [entry(offset) for offset in offsets]


def _by_offset(
    tables: TablesView, name: str, columns: Sequence[str], offsets: Sequence[int]
) -> dict[int, list[dict[str, Any]]]:
    """The rows of some records, whose offsets ascend."""
    if not offsets:
        return {}
    rows = tables.rows(name, columns, offsets[0] - 1, offsets[-1], offsets)
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        found.setdefault(row["log_offset"], []).append(row)
    return found


def _request(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "offset": row["log_offset"],
        "tx_id": row["tx_id"].hex(),
        "content_digest": row["content_digest"].hex(),
        "inputs": row["inputs"],
        "references": row["referenced_states"],
        "party": row["party"],
        "user_id": row["user_id"],
        "command_id": row["command_id"],
        "submission_id": row["submission_id"],
        "submitted_us": _us(row["stamp_at"]),
        "public_key": row["public_key"].hex(),
    }


def _in_force(epoch: dict[str, Any]) -> dict[str, Any]:
    return {"epoch": epoch["epoch"], "replica": epoch["replica"], "barrier_offset": epoch["log_offset"]}


def _verdict(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "outcome": row["outcome"],
        "notarised_offset": row["notarised_offset"],
        "judged_us": _us(row["judged_at"]),
    }


def _conflict(row: dict[str, Any], consumers: Mapping[int, list[dict[str, Any]]]) -> dict[str, Any]:
    return {
        "state": row["state"],
        "usage": row["usage"],
        "consumed_by": consumers[row["consumed_offset"]][0]["tx_id"].hex(),
        "consumed_at": row["consumed_offset"],
    }


def _in_order(row: dict[str, Any]) -> tuple[bool, bytes, int]:
    """By usage and state, as the state's bytes sort."""
    tx_id, _, index = row["state"].partition(":")
    return row["usage"] == "reference", bytes.fromhex(tx_id), int(index)


def _us(time: datetime) -> int:
    return round(time.timestamp() * 1e6)


def _offsets(rows: pa.Table) -> list[int]:
    found: list[int] = rows["log_offset"].to_pylist()
    return found


def _chunks(rows: pa.Table, column: str) -> list[tuple[pa.Array, Any]]:
    """The pieces of a column of lists, each with the offsets of its rows."""
    pieces, start = [], 0
    for chunk in rows[column].chunks:
        pieces.append((chunk, rows["log_offset"].slice(start, len(chunk)).to_numpy()))
        start += len(chunk)
    return pieces
