"""What a run of judged records adds to each table. Pure.

Every row names its record's log offset. The tables are parted by `day`, the UTC day of the record's stamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from replica.notary.counted import Counted, CountedRequest, CountedSettlement
from replica.notary.outcomes import CODE_OF
from replica.notary.reading import BarrierInForce
from replica.notary.requests import format_state_ref
from replica.notary.rules import Verdict
from replica.notary.salvage import Salvage, transaction_in
from replica.store.completions import of_request, of_settlement
from replica.store.interface import Completion

DAY_US = 86_400 * 1_000_000
_TIME = pa.timestamp("us", tz="UTC")
_KEYS = [pa.field("offset", pa.int64(), nullable=False), pa.field("day", pa.date32(), nullable=False)]

REQUESTS, VERDICTS, CONFLICTS, EPOCHS = "requests", "verdicts", "conflicts", "epochs"
COMPLETIONS, LOST = "completions", "lost"
SCHEMAS = {
    VERDICTS: pa.schema(
        [
            *_KEYS,
            ("judged_at", _TIME),  # the highest stamp up to this record: the time that windows are judged by
            ("tx_id", pa.binary()),
            ("outcome", pa.string()),  # a code of replica/notary/outcomes.py
            ("notarised_offset", pa.int64()),
        ]
    ),
    CONFLICTS: pa.schema(
        [
            *_KEYS,
            ("state", pa.string()),
            ("usage", pa.string()),  # input, reference
            ("consumed_by_hash", pa.binary()),
            ("consumed_at", pa.int64()),  # log offset of the request that consumed it
        ]
    ),
    EPOCHS: pa.schema(
        [
            *_KEYS,  # of the barrier; its day is that of the newest request before it
            ("began_at", _TIME),
            ("epoch", pa.int64()),
            ("replica", pa.string()),
        ]
    ),
    LOST: pa.schema(
        [
            *_KEYS,  # of the lost record; its day is that of the newest request before it
            ("salvage", pa.string()),  # digest of the file that it names, in hexadecimal
            ("tx_id", pa.binary()),  # which was notarised there; null: none is known to be
            ("content_digest", pa.binary()),
            ("inputs", pa.list_(pa.string())),  # null: nobody knows which states it consumed
        ]
    ),
    COMPLETIONS: pa.schema(
        [
            *_KEYS,  # of the record, of which a settlement has several completions; the day is that of `recorded_at`
            ("ledger_offset", pa.int64()),
            ("recorded_at", _TIME),
            ("change_id", pa.binary()),
            ("user_id", pa.string()),
            ("command_id", pa.string()),
            ("act_as", pa.list_(pa.string())),
            ("submission_id", pa.string()),
            ("tx_id", pa.binary()),
            ("content_digest", pa.binary()),
            ("outcome", pa.string()),
            ("notarised_offset", pa.int64()),
        ]
    ),
    REQUESTS: pa.schema(
        [
            *_KEYS,
            ("stamp_at", _TIME),
            ("tx_id", pa.binary()),
            ("content_digest", pa.binary()),
            ("inputs", pa.list_(pa.string())),
            ("references", pa.list_(pa.string())),
            ("party", pa.string()),
            ("user_id", pa.string()),
            ("command_id", pa.string()),
            ("submission_id", pa.string()),
            ("public_key", pa.binary()),
            ("sequence", pa.int64()),
        ]
    ),
}
"""Columns of each table, in the order in which tables are appended to: whoever finds a request finds its verdict."""


class LostRecord(NamedTuple):
    """A lost record, the index entries that its salvage has of it, and the highest stamp before it."""

    offset: int
    salvage: Salvage
    entries: Mapping[bytes, bytes]
    stamp_us: int


def rows_of(
    decided: Iterable[tuple[Counted, Verdict | None]],
    barriers: Iterable[BarrierInForce],
    lost: Iterable[LostRecord],
    ledger_end: int,
    consumed_at: Callable[[bytes], int],
) -> dict[str, pa.Table]:
    """The rows of some records, of barriers that came into force, and of lost records, for every table.

    `ledger_end`: the ledger offset of the last completion before them, 0 for none. `consumed_at`: the log offset at
    which a state that caused a refusal was consumed.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
    completions: list[Completion] = []
    for entry, verdict in decided:
        if isinstance(entry, CountedSettlement):
            completions += of_settlement(entry)
        elif isinstance(entry, CountedRequest) and verdict is not None:
            completions.append(of_request(entry, verdict))
            keys = {"offset": entry.offset, "day": entry.record.stamp_us // DAY_US}
            rows[REQUESTS].append(keys | _request(entry))
            rows[VERDICTS].append(keys | _verdict(entry, verdict))
            rows[CONFLICTS] += [
                keys
                | {
                    "state": format_state_ref(conflict.state),
                    "usage": conflict.usage.value,
                    "consumed_by_hash": conflict.consumed_by_hash,
                    "consumed_at": consumed_at(conflict.state),
                }
                for conflict in verdict.conflicts
            ]
    rows[COMPLETIONS] = [_completion(one, at) for at, one in enumerate(completions, ledger_end + 1)]
    rows[EPOCHS] += [
        {
            "offset": one.offset,
            "day": one.stamp_us // DAY_US,
            "began_at": one.stamp_us,
            "epoch": one.record.epoch,
            "replica": one.record.replica,
        }
        for one in barriers
    ]
    rows[LOST] += map(_lost, lost)
    return {name: pa.Table.from_pylist(rows[name], schema) for name, schema in SCHEMAS.items()}


def _lost(one: LostRecord) -> dict[str, Any]:
    row = {"offset": one.offset, "day": one.stamp_us // DAY_US, "salvage": one.salvage.digest.hex()}
    if not one.entries:
        return row
    tx_id, digest, states = transaction_in(one.entries)
    known = one.offset <= one.salvage.header.applied
    inputs = [format_state_ref(state) for state in states] if known else None
    return row | {"tx_id": tx_id, "content_digest": digest, "inputs": inputs}


def _request(entry: CountedRequest) -> dict[str, Any]:
    request, submission = entry.request, entry.record.submission
    return {
        "stamp_at": entry.record.stamp_us,
        "tx_id": request.tx_id,
        "content_digest": entry.content_digest,
        "inputs": [format_state_ref(ref) for ref in request.inputs],
        "references": [format_state_ref(ref) for ref in request.references],
        "party": request.party,
        "user_id": submission.user_id,
        "command_id": submission.command_id,
        "submission_id": submission.submission_id,
        "public_key": submission.public_key,
        "sequence": entry.record.sequence,
    }


def _verdict(entry: CountedRequest, verdict: Verdict) -> dict[str, Any]:
    return {
        "judged_at": entry.judged_us,
        "tx_id": entry.request.tx_id,
        "outcome": CODE_OF[verdict.outcome],
        "notarised_offset": verdict.notarised_offset,
    }


def _completion(one: Completion, ledger_offset: int) -> dict[str, Any]:
    return {
        "offset": one.log_offset,
        "day": one.recorded_us // DAY_US,
        "ledger_offset": ledger_offset,
        "recorded_at": one.recorded_us,
        "change_id": one.change_id,
        "user_id": one.user_id,
        "command_id": one.command_id,
        "act_as": one.act_as,
        "submission_id": one.submission_id,
        "tx_id": one.tx_id,
        "content_digest": one.content_digest,
        "outcome": one.outcome,
        "notarised_offset": one.notarised_offset,
    }
