"""The product's void rule and rules against the reference judge, over random logs in which everything happens."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from replica.checker.judge import (
    Judged,
    JudgedBarrier,
    JudgedGenesis,
    JudgedNote,
    JudgedRequest,
    JudgedVoid,
    ReferenceJudge,
)
from replica.notary.counted import CountedNote, CountedRequest
from replica.notary.genesis import GenesisRecord
from replica.notary.records import SignOfLifeRecord
from replica.notary.rules import Outcome, Verdict, hash_of_tx_id
from tests.worlds.notary_logs import Log, Run, logs, run_product

_many = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
_cuts = st.lists(st.integers(0, 45), max_size=6)
_logs = logs()
OUTCOMES = {
    "PARTY_UNKNOWN": Outcome.PARTY_UNKNOWN,
    "DEDUPLICATED": Outcome.DEDUPLICATED,
    "COMMAND_ID_REUSED": Outcome.COMMAND_ID_REUSED,
    "NOTARISED": Outcome.NOTARISED,
    "TX_ID_REUSED": Outcome.TX_ID_REUSED,
    "STATE_CONFLICT": Outcome.CONFLICT,
    "TIME_WINDOW_CLOSED": Outcome.TIME_WINDOW_CLOSED,
}


@_many
@given(_logs, _cuts)
def test_the_product_and_the_reference_judge_agree_on_every_record(log: Log, cuts: list[int]) -> None:
    """Goal: two implementations, one truth. Method: compare each record, then index, stamp, sequence numbers."""
    judge = ReferenceJudge()
    judged = list(judge.judge(log))
    run = run_product(log, cuts)
    assert {j.offset: j.reason for j in judged if isinstance(j, JudgedVoid)} == run.voids
    barriers = [(j.offset, j.record) for j in judged if isinstance(j, JudgedBarrier) and not j.repeated]
    assert barriers == [(found.offset, found.record) for found in run.barriers]
    assert _requests_of(judged) == _requests_of_product(run)
    notes = [j for j in judged if isinstance(j, JudgedNote) and not isinstance(j.record, SignOfLifeRecord)]
    assert {(j.offset, j.record, j.judged_us) for j in notes} == {
        (c.offset, c.record, c.judged_us)
        for c in run.counted.values()
        if isinstance(c, CountedNote) and not isinstance(c.record, GenesisRecord)
    }
    assert any(isinstance(j, JudgedGenesis) for j in judged) == isinstance(
        getattr(run.counted.get(0), "record", None), GenesisRecord
    )
    assert _entries_of(judge) == run.index
    assert _acceptances_of(judged) == run.acceptances
    assert (judge.offset, judge.barrier, judge.stamp_us) == (
        run.position.offset,
        run.position.barrier,
        run.position.stamp_us,
    )
    assert judge.sequences == {number for start, end in run.position.seen for number in range(start, end)}
    if run.position.barrier is not None:
        assert judge.holder_wrote_at == run.position.counted_offset
    assert all(before[1] < after[0] for before, after in pairwise(run.position.seen))  # ascending, and never touching
    for kind, count in Counter(_kind(j) for j in judged).items():
        event(f"{kind}: {min(count, 3)}")


@pytest.mark.thorough
@_many
@given(_logs, _cuts)
def test_batches_do_not_matter(log: Log, cuts: list[int]) -> None:
    """Goal: no verdict depends on how reads are cut. Method: one batch against random ones, position stored between."""
    assert run_product(log, cuts) == run_product(log)


@pytest.mark.thorough
@_many
@given(_logs, _cuts)
def test_an_old_record_judged_on_a_newer_index_gets_its_old_verdict(log: Log, cuts: list[int]) -> None:
    """Goal: replay gives the same answer. Method: judge the log again on the final index."""
    first = run_product(log)
    again = run_product(log, cuts, newer=first)
    assert again.verdicts == first.verdicts
    assert again.index == first.index
    assert again.acceptances == first.acceptances


def _kind(judged: object) -> str:
    if isinstance(judged, JudgedVoid):
        return judged.reason
    return judged.outcome if isinstance(judged, JudgedRequest) else type(judged).__name__


def _requests_of(judged: list[Judged]) -> dict[int, tuple[object, ...]]:
    return {
        j.offset: (
            j.record,
            j.request,
            j.content_digest,
            j.judged_us,
            OUTCOMES[j.outcome],
            j.notarised_offset,
            j.change_id,
            [(c.state, hash_of_tx_id(c.consumed_by), c.usage) for c in j.conflicts],
        )
        for j in judged
        if isinstance(j, JudgedRequest)
    }


def _requests_of_product(run: Run) -> dict[int, tuple[object, ...]]:
    def as_tuple(entry: CountedRequest, verdict: Verdict) -> tuple[object, ...]:
        conflicts = [(c.state, c.consumed_by_hash, c.usage.value) for c in verdict.conflicts]
        at = (entry.record, entry.request, entry.content_digest, entry.judged_us)
        return (*at, verdict.outcome, verdict.notarised_offset, entry.change_id, conflicts)

    return {
        entry.offset: as_tuple(entry, run.verdicts[entry.offset])
        for entry in run.counted.values()
        if isinstance(entry, CountedRequest)
    }


def _entries_of(judge: ReferenceJudge) -> dict[bytes, bytes]:
    """What the index must hold, from the text of docs/formats.md."""
    entries = {b"t" + tx_id: digest + at.to_bytes(8, "big") for tx_id, (digest, at) in judge.notarised.items()}
    for ref, tx_id in judge.consumed.items():
        entries[b"s" + ref] = tx_id + judge.notarised[tx_id][1].to_bytes(8, "big")
    return entries


def _acceptances_of(judged: list[Judged]) -> dict[bytes, bytes]:
    """What the table of commands must hold, from the text of docs/formats.md."""
    entries: dict[bytes, bytes] = {}
    for one in judged:
        if isinstance(one, JudgedRequest) and one.outcome == "NOTARISED":
            at = one.offset.to_bytes(8, "big")
            key = b"c" + one.change_id
            key += at if key in entries else b""
            when = one.judged_us.to_bytes(8, "big") + one.ledger_offset.to_bytes(8, "big")
            entries[key] = one.request.tx_id + one.content_digest + when + at
    return entries
