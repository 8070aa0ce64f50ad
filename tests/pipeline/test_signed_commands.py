"""The audit of requests whose signature covers the command. No Spark: the function that its tasks run."""

from __future__ import annotations

import pyarrow as pa
import pytest
from msgspec.structs import replace

from ledger_api.client import Deduplication, Party
from pipeline.audit.signatures import unsigned
from pipeline.judging.columns import decode
from pipeline.judging.plan import counted
from replica.notary.counted import CountedRequest
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.records import encode_record, request_record
from replica.notary.requests import Submission
from tests.pipeline.judged import TOPIC, plan_of
from tests.pipeline.signed_log import ACTIVATION, BEGINNING, FIRST, PARTY, PARTY_KEY
from tests.worlds.beginning import LEDGER

pytestmark = pytest.mark.thorough

BANK, OTHER = Party(PARTY, LEDGER, PARTY_KEY), Party("O=B", LEDGER)


def record(sequence: int, submission: Submission, period_us: int = 60_000_000) -> bytes:
    return encode_record(request_record(2, ACTIVATION, sequence, 1_000_000, submission, period_us))


def log() -> list[bytes]:
    """Good, forged, and of the other party; the last one has another period than it was signed for, so it is void."""
    minute = Deduplication(60.0)
    good = BANK.sign("11" * 32, command_id="c", user_id="u", deduplication=minute)
    submissions = [
        good,
        replace(good, signature=BANK.key.sign(b"other").signature),
        BANK.sign("22" * 32),
        replace(BANK.sign("33" * 32), signature=good.signature),
        OTHER.sign("44" * 32, act_as=[PARTY]),
    ]
    records = [record(at, one) for at, one in enumerate(submissions)]
    return [*BEGINNING, *records, record(len(records), good, period_us=61_000_000)]


def test_signatures_are_audited() -> None:
    """Goal: the audit reads signed commands as replicas do. Method: a log with each case, by columns; the replicas' own
    reading says which records count."""
    values = log()
    columns = decode(0, pa.array(values, pa.binary()))
    plan = plan_of([columns])
    found = counted(columns, plan)
    reading = read_records(begin(TOPIC), list(enumerate(values)))
    rows = columns.rows[found.requests].tolist()
    assert rows == [entry.offset for entry in reading.counted if isinstance(entry, CountedRequest)]
    assert rows == [FIRST + at for at in range(5)]
    assert unsigned(columns, found.requests, after=-1) == [FIRST + 1, FIRST + 3]
