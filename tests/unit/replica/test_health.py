"""The health document: what is written is what it was, and what is read of it is in it."""

from __future__ import annotations

import json

import msgspec
import pytest

from ha.lock.interface import ServerLease
from replica.health import HealthDocument, ReplicaHealth, Scrubbed, ScrubProgress, read_health
from replica.notary.formats import Known
from replica.notary.untrusted import UNREADABLE

DOCUMENT = HealthDocument(
    replica="r1",
    version="0.1",
    active=True,
    ready=True,
    role="active",
    leading=True,
    lock_session=3,
    lock_session_open=True,
    lock_answer_age_s=0.25,
    lock_owner="r1",
    lock_lease={"frees_after_s": 3.0, "verified": True, "detail": "idle_session_timeout"},
    clock_skew_s=-0.001,
    hold_down_s=0.0,
    failover_paused=False,
    service_paused=False,
    epoch=7,
    applied_offset=41,
    lag_records=0,
    granted_by="6/abc",
    reaches_log=True,
    log_hazards=["retention.ms is 1"],
    front_ends=2,
    scrub=ScrubProgress(
        records=3, of_records=42, age_s=1.5, within_s=86400.0, rate_per_s=2.0, wanted_per_s=0.1, complete_walks=1
    ),
    index_digests={"10": "ab"},
    ledger_end=40,
    in_flight=1,
    formats_known=Known((1, 2), (1,)),
    activation_steps_s={"open": 0.5},
    rules_in_force=2,
    answers=[5, 6],
    clock_us=1_700_000_000_000_000,
    serving="all",
    not_serving="clock",
    not_serving_detail="the wall clock jumped",
    may_lead=False,
    site="taken_over",
    site_detail="term 2 of site b",
)
TEXT = (
    '{"replica": "r1", "version": "0.1", "active": true, "ready": true, "role": "active", "leading": true, '
    '"lock_session": 3, "lock_session_open": true, "lock_answer_age_s": 0.25, "lock_owner": "r1", "lock_lease": '
    '{"frees_after_s": 3.0, "verified": true, "detail": "idle_session_timeout"}, "clock_skew_s": -0.001, '
    '"hold_down_s": 0.0, "failover_paused": false, "service_paused": false, '
    '"epoch": 7, "applied_offset": 41, "lag_records": 0, "granted_by": '
    '"6/abc", "reaches_log": true, "log_hazards": ["retention.ms is 1"], "front_ends": 2, "scrub": {"records": 3, '
    '"of_records": 42, "age_s": 1.5, "within_s": 86400.0, "rate_per_s": 2.0, "wanted_per_s": 0.1, "complete_walks": 1},'
    ' "index_digests": {"10": "ab"}, "ledger_end": 40, "in_flight": 1, "formats_known": {"records": [1, 2], "rules": '
    '[1]}, "activation_steps_s": {"open": 0.5}, "rules_in_force": 2, '
    '"answers": [5, 6], '
    '"clock_us": 1700000000000000, "serving": "all", "not_serving": "clock", "not_serving_detail": '
    '"the wall clock jumped", "may_lead": false, "site": "taken_over", "site_detail": '
    '"term 2 of site b", "front_ends_silent": 0, "marks": {"applied": "", "synced": {}, '
    '"contradicted": "", "contradicted_own": false}, '
    '"exposed_records": 0, "marks_problems": []}'
)


def test_the_document_is_written_as_it_always_was() -> None:
    """Goal: a reader of /health finds every field where it was. Method: the text of a document with all of them."""
    assert json.dumps(DOCUMENT.as_json_object()) == TEXT


def test_what_is_read_of_it_is_in_it() -> None:
    """Goal: no reader asks for a field that nobody writes. Method: names, and one document read back."""
    assert set(ReplicaHealth.__struct_fields__) <= set(HealthDocument.__struct_fields__)
    health = read_health(TEXT.encode())
    assert (health.replica, health.epoch, health.lock_owner, health.formats_known) == (
        "r1",
        7,
        "r1",
        Known((1, 2), (1,)),
    )
    assert health.scrub == Scrubbed(3, 42, 1.5, 86400.0)
    assert health.lock_lease == ServerLease(3.0, True, "idle_session_timeout")


def test_an_older_release_is_read_and_a_stranger_is_refused() -> None:
    """Goal: tools work during an upgrade. Method: leave out what is new, then what was always there."""
    newer = {field.name for field in msgspec.structs.fields(ReplicaHealth) if not field.required}
    plain = json.loads(TEXT)
    older = {name: value for name, value in plain.items() if name not in newer}
    assert read_health(json.dumps(older).encode()).scrub is None
    with pytest.raises(UNREADABLE):
        read_health(json.dumps({name: value for name, value in plain.items() if name != "epoch"}).encode())
