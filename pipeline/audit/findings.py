"""What an audit finds: rows of one shape, whatever check they come from, so that no check collects anything itself."""

from __future__ import annotations

from enum import Enum

import msgspec
import pyarrow as pa

NOWHERE = -1  # the log offset of what has none
SCHEMA = "code string, offset bigint, message string"
_ARROW = pa.schema([("code", pa.string()), ("offset", pa.int64()), ("message", pa.string())])


class FindingCode(Enum):
    """What is wrong."""

    SIGNATURE_INVALID = "SIGNATURE_INVALID"  # a request counts that its party did not sign
    NOTE_SIGNATURE_INVALID = "NOTE_SIGNATURE_INVALID"  # an act or registration counts that its key did not sign
    NOT_AN_OFFICER = "NOT_AN_OFFICER"  # an act or registration counts whose key was no officer's at its offset
    DOUBLE_SPEND = "DOUBLE_SPEND"  # answered or published as notarised, though another transaction had consumed a state
    COMPLETION_MISSING = "COMPLETION_MISSING"  # the log decided a submission, and the database has no completion of it
    COMPLETION_EXTRA = "COMPLETION_EXTRA"  # the database has a completion that no record of the log yields
    COMPLETION_DIFFERS = "COMPLETION_DIFFERS"  # other ids, content, time or verdict than the log's
    LEDGER_NOT_DENSE = "LEDGER_NOT_DENSE"  # ledger offsets have a gap, or not the log's order
    POSITION_DIFFERS = "POSITION_DIFFERS"  # the published position is not one of this log
    ANSWER_DIFFERS = "ANSWER_DIFFERS"  # a client got another answer than the log decided
    RECEIPT_INVALID = "RECEIPT_INVALID"  # a receipt that the notary did not sign
    TRAIL_BROKEN = "TRAIL_BROKEN"  # the operators' trail is not whole, or somebody unknown signed
    LOG_CHANGED = "LOG_CHANGED"  # the record at the verified-up-to offset is another one than when it was verified


class Finding(msgspec.Struct, frozen=True):
    """One thing that is wrong, at a log offset (-1 if it has none)."""

    code: FindingCode
    offset: int
    message: str


def finding_batch(code: FindingCode, found: list[tuple[int, str]]) -> pa.RecordBatch:
    """Findings (offset, message) of one kind as rows of SCHEMA."""
    offsets, messages = [offset for offset, _ in found], [message for _, message in found]
    return pa.RecordBatch.from_arrays(
        [pa.array([code.value] * len(found)), pa.array(offsets, pa.int64()), messages], schema=_ARROW
    )
