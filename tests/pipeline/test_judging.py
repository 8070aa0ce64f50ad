"""The notary's judgement in parallel is the notary's judgement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.judging.columns import BAD_REQUEST, BARRIER, REQUEST, SETTLEMENT, UNDECODABLE, decode
from replica.checker.judge import JudgedRequest, ReferenceJudge
from replica.notary.canonical import decode_request
from replica.notary.errors import BadRequest, FormatUnknown
from replica.notary.outcomes import CODE_OF
from replica.notary.records import BarrierRecord, RequestRecord, SettlementRecord, Undecodable, decode_record
from replica.notary.rules import Outcome
from tests.golden.make import FOLDER
from tests.pipeline.judged import Judged, by_replica, in_slices, resolve_naively
from tests.pipeline.random_logs import chain, damaged, logs, requests
from tests.worlds.notary_logs import Log
from tests.worlds.notary_logs import logs as mixed_logs

CUTS = st.lists(st.integers(1, 40), max_size=6)


@settings(deadline=None, max_examples=400)
@given(logs(), CUTS, CUTS, st.sampled_from([1, 2, 4, 8, 200]))
def test_slices_give_what_a_replica_gives(values: list[bytes], cuts: list[int], runs: list[int], buckets: int) -> None:
    """Goal: index, position, verdicts and voids are those of a replica. Method: random logs, cut at random."""
    assert _or_refused(in_slices, values, cuts, buckets) == _or_refused(by_replica, values, runs)


def _or_refused(judge: Callable[..., Judged], *given: object) -> Judged | type[FormatUnknown]:
    """What a log amounts to, unless damage made one of its barriers announce a format that nobody knows."""
    try:
        return judge(*given)
    except FormatUnknown:
        return FormatUnknown


@settings(deadline=None, max_examples=600)
@given(mixed_logs(2), CUTS, CUTS, st.sampled_from([1, 2, 4, 8, 200]))
def test_slices_of_mixed_logs_give_what_a_replica_and_the_reference_judge_give(
    log: Log, cuts: list[int], runs: list[int], buckets: int
) -> None:
    """Goal: verdicts under both rules, and acceptances, are those of the other two. Method: random logs that are raised
    and lowered, with retries under one command, periods, offsets, closed windows and repeated transactions."""
    values = [value for _, value in log]
    found = in_slices(values, cuts, buckets)
    assert found == by_replica(values, runs)
    assert found.verdicts == by_reference(log)


def by_reference(log: Log) -> dict[int, tuple[Outcome, int | None]]:
    """The verdicts of the judge that shares no rules with the product."""
    judged = [one for one in ReferenceJudge().judge(log) if isinstance(one, JudgedRequest)]
    outcome_of = {code: outcome for outcome, code in CODE_OF.items()}
    return {one.offset: (outcome_of[one.outcome], one.notarised_offset) for one in judged}


@settings(deadline=None, max_examples=100)
@given(logs(), CUTS, st.sampled_from([1, 4]))
def test_commands_are_looked_at_only_where_they_are_wanted(values: list[bytes], cuts: list[int], buckets: int) -> None:
    """Goal: a log of rules 1 is judged alike without its commands. Method: random logs, without and with."""
    without = _or_refused(partial(in_slices, commands=False), values, cuts, buckets)
    expected = _or_refused(by_replica, values)
    if isinstance(without, Judged) and isinstance(expected, Judged):
        assert without.commands is None
        assert replace(expected, commands=None) == without


@settings(deadline=None, max_examples=400)
@given(st.lists(st.one_of(requests(), damaged()), max_size=8))
def test_columns_say_what_the_decoders_say(values: list[bytes]) -> None:
    """Goal: kind and fields are the notary's own decoders'. Method: random records, many of them damaged."""
    columns = decode(7, pa.array(values, pa.binary()))
    rows = columns.rows.tolist()
    for row, value in enumerate(values):
        assert columns.value(row) == value
        kind, record = _kind_of(value)
        assert columns.kind[row] == kind, value.hex()
        if isinstance(record, RequestRecord) and kind == REQUEST:
            at = rows.index(row)
            request, _ = decode_request(record.submission.request)
            window = request.window
            assert bytes(columns.activation[row]) == record.activation_id + bytes([record.format])
            assert (columns.sequence[row], columns.stamp_us[row]) == (record.sequence, record.stamp_us)
            assert columns.tx_ids()[at].tobytes() == request.tx_id
            assert columns.at(columns.public_key_at, 32)[at].tobytes() == record.submission.public_key
            assert columns.at(columns.signature_at, 64)[at].tobytes() == record.submission.signature
            assert columns.from_us[at] == (window.from_us or 0 if window else 0)
            until_us = None if window is None else window.until_us
            assert columns.until_us[at] == (2**63 - 1 if until_us is None else until_us)


def _kind_of(value: bytes) -> tuple[int, object]:
    try:
        record = decode_record(value, 1)
        if isinstance(record, RequestRecord):
            decode_request(record.submission.request)
    except Undecodable:
        return UNDECODABLE, None
    except BadRequest:
        return BAD_REQUEST, record
    return {BarrierRecord: BARRIER, RequestRecord: REQUEST, SettlementRecord: SETTLEMENT}[type(record)], record


@pytest.mark.parametrize("cuts", [[], [3, 6, 12, 20], list(range(1, 36))])
def test_the_kept_mixed_log_is_judged_as_it_was(cuts: list[int]) -> None:
    """Goal: verdicts, entries and acceptances of the golden log, byte by byte. Method: whole, and cut."""
    found = in_slices([bytes.fromhex(line["value"]) for line in _kept("log")], cuts)
    assert found.verdicts == {
        line["offset"]: (Outcome(line["outcome"]), line["notarised_offset"])
        for line in _kept("judged-by-rules-1-and-2")
        if "outcome" in line
    }
    assert dict(found.voids) == {at["offset"]: at["void"] for at in _kept("judged-by-rules-1-and-2") if "void" in at}
    for name, entries in (("index-by-rules-1-and-2", found.index), ("acceptances", found.commands)):
        assert [(key.hex(), value.hex()) for key, value in entries or []] == [
            (line["key"], line["value"]) for line in _kept(name)
        ]


def _kept(name: str) -> list[dict[str, Any]]:
    path = FOLDER / "logs" / "format-2" / f"{name}.jsonl"
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


def test_the_naive_rule_gives_another_index() -> None:
    """Goal: the property sees the wrong rule. Method: A{x} B{x,y} C{y}, judged by "the first to name it has it"."""
    values = chain()
    assert in_slices(values) == by_replica(values)
    with pytest.raises(AssertionError):
        assert in_slices(values, resolve=resolve_naively).index == by_replica(values).index
