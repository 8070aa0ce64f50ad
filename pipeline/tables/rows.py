"""What a run of judged records adds to each table. Pure.

Every row names its record's log offset. The tables are parted by `day`, the UTC day of the record's stamp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from replica.notary.counted import Counted, CountedRequest
from replica.notary.outcomes import CODE_OF
from replica.notary.reading import BarrierInForce
from replica.notary.requests import format_state_ref
from replica.notary.rules import Verdict
from replica.notary.salvage import Salvage, transaction_in
from replica.store.completions import of_request
from replica.store.interface import Completion

DAY_US = 86_400 * 1_000_000
_TIME, _IDS, _STATES = pa.timestamp("us", tz="UTC"), pa.binary(), pa.list_(pa.string())


def _column(name: str, kind: pa.DataType, comment: str, *, nullable: bool = False) -> pa.Field:
    """`comment`: what readers of the table see of the column. A column that a later release adds is nullable, as older
    rows lack it."""
    return pa.field(name, kind, nullable=nullable, metadata={"comment": comment})


def _keys(record: str, day_of: str) -> list[pa.Field]:
    return [
        _column("log_offset", pa.int64(), f"offset of {record} in the log"),
        _column("day", pa.date32(), f"UTC day of {day_of}; the tables are parted by it"),
    ]


_TX_ID = _column("tx_id", _IDS, "transaction id; lower(hex(tx_id)) is its text")
_USER_ID = _column("user_id", pa.string(), "user who submitted the command")
_COMMAND_ID = _column("command_id", pa.string(), "the command's id, by its user")
_SUBMISSION_ID = _column("submission_id", pa.string(), "id of this submission, by its user")
_OUTCOME = _column("outcome", pa.string(), "NOTARISED, or the code of the refusal")
_NOTARISED = _column(
    "notarised_offset", pa.int64(), "log offset where the transaction was first notarised; null: refused", nullable=True
)
_DIGEST = _column("content_digest", _IDS, "SHA-256 of what is notarised, without signatures")

REQUESTS, VERDICTS, CONFLICTS, EPOCHS = "requests", "verdicts", "conflicts", "epochs"
COMPLETIONS, LOST = "completions", "lost"
SCHEMAS = {
    VERDICTS: pa.schema(
        [
            *_keys("the request", "the request's stamp"),
            _column("judged_at", _TIME, "highest stamp up to this record: time windows are judged by it"),
            _TX_ID,
            _OUTCOME,
            _NOTARISED,
        ]
    ),
    CONFLICTS: pa.schema(
        [
            *_keys("the refused request", "the request's stamp"),
            _column("state", pa.string(), "consumed state, TXID:INDEX"),
            _column("usage", pa.string(), "how the request named it: input or reference"),
            _column("consumed_by_hash", _IDS, "SHA-256 of the transaction id that consumed it"),
            _column("consumed_offset", pa.int64(), "log offset of the request that consumed it"),
        ]
    ),
    EPOCHS: pa.schema(
        [
            *_keys("the barrier", "the newest request before it"),
            _column("began_at", _TIME, "highest stamp before it; null: no request came before", nullable=True),
            _column("epoch", pa.int64(), "number of the epoch, which only rises"),
            _column("replica", pa.string(), "replica that leads from here on"),
        ]
    ),
    LOST: pa.schema(
        [
            *_keys("the lost record", "the newest request before it"),
            _column("salvage", pa.string(), "digest of the salvage file that the record names, in hexadecimal"),
            _column("tx_id", _IDS, "transaction notarised there; null: none is known", nullable=True),
            _column("content_digest", _IDS, "of that transaction; null: none is known", nullable=True),
            _column("inputs", _STATES, "states that it consumed; null: unknown", nullable=True),
        ]
    ),
    COMPLETIONS: pa.schema(
        [
            *_keys("the record that decided the command", "recorded_at"),
            _column("ledger_offset", pa.int64(), "number of the completion, as replicas publish it: 1, 2, 3, ..."),
            _column("recorded_at", _TIME, "time of the completion"),
            _column("change_id", _IDS, "SHA-256 that names the command: user, acting parties and command id"),
            _USER_ID,
            _COMMAND_ID,
            _column("act_as", _STATES, "parties on whose behalf the command was submitted"),
            _SUBMISSION_ID,
            _TX_ID,
            _DIGEST,
            _OUTCOME,
            _NOTARISED,
        ]
    ),
    REQUESTS: pa.schema(
        [
            *_keys("the request", "the request's stamp"),
            _column("stamp_at", _TIME, "time at which the replica that sent it to the log stamped it"),
            _TX_ID,
            _DIGEST,
            _column("inputs", _STATES, "states that it consumes if it is notarised, TXID:INDEX"),
            _column("referenced_states", _STATES, "states that it refers to and does not consume"),
            _column("party", pa.string(), "requesting party's X.500 name"),
            _USER_ID,
            _COMMAND_ID,
            _SUBMISSION_ID,
            _column("public_key", _IDS, "key that the request is signed by"),
            _column("sequence", pa.int64(), "number of the record within its activation"),
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
    consumed_at: Callable[[bytes], int],
) -> dict[str, pa.Table]:
    """The rows of some records, of barriers that came into force, and of lost records, for every table.

    `consumed_at`: the log offset at which a state that caused a refusal was consumed.
    """
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in SCHEMAS}
    for entry, verdict in decided:
        if isinstance(entry, CountedRequest) and verdict is not None:
            rows[COMPLETIONS].append(_completion(of_request(entry, verdict), entry.ledger_offset))
            keys = {"log_offset": entry.offset, "day": entry.record.stamp_us // DAY_US}
            rows[REQUESTS].append(keys | _request(entry))
            rows[VERDICTS].append(keys | _verdict(entry, verdict))
            rows[CONFLICTS] += [
                keys
                | {
                    "state": format_state_ref(conflict.state),
                    "usage": conflict.usage.value,
                    "consumed_by_hash": conflict.consumed_by_hash,
                    "consumed_offset": consumed_at(conflict.state),
                }
                for conflict in verdict.conflicts
            ]
    rows[EPOCHS] += [
        {
            "log_offset": one.offset,
            "day": one.stamp_us // DAY_US,
            "began_at": one.stamp_us or None,
            "epoch": one.record.epoch,
            "replica": one.record.replica,
        }
        for one in barriers
    ]
    rows[LOST] += map(_lost, lost)
    return {name: pa.Table.from_pylist(rows[name], schema) for name, schema in SCHEMAS.items()}


def _lost(one: LostRecord) -> dict[str, Any]:
    row = {"log_offset": one.offset, "day": one.stamp_us // DAY_US, "salvage": one.salvage.digest.hex()}
    if not one.entries:
        return row
    tx_id, digest, states = transaction_in(one.entries)
    known = one.offset <= one.salvage.header.applied
    inputs = [format_state_ref(state) for state in states] if known else None
    return row | {"tx_id": tx_id, "content_digest": digest, "inputs": inputs}


def _request(entry: CountedRequest) -> dict[str, Any]:
    request, terms = entry.request, entry.terms
    return {
        "stamp_at": entry.record.stamp_us,
        "tx_id": request.tx_id,
        "content_digest": entry.content_digest,
        "inputs": [format_state_ref(ref) for ref in request.inputs],
        "referenced_states": [format_state_ref(ref) for ref in request.references],
        "party": request.party,
        "user_id": terms.user_id,
        "command_id": terms.command_id,
        "submission_id": entry.record.submission_id,
        "public_key": entry.record.public_key,
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
        "log_offset": one.log_offset,
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
