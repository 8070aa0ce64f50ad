"""The notary's judgement in parallel is the notary's judgement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from pipeline.judging.claims import CLAIM, CLOSED
from pipeline.judging.columns import BAD_REQUEST, BARRIER, NOTE, REQUEST, UNDECODABLE, decode
from pipeline.judging.commands import key_values as acceptance_values
from pipeline.judging.reasons import DEDUPLICATED, DUPLICATE, NO_KEY
from pipeline.tables.rows import LOST, VERDICTS
from replica.checker.judge import JudgedRequest, ReferenceJudge
from replica.notary.acceptances import counts
from replica.notary.canonical import change_id
from replica.notary.errors import BadRequest, FormatUnknown, IndexMismatch, InvariantBroken
from replica.notary.outcomes import CODE_OF
from replica.notary.records import (
    BarrierRecord,
    RegistrationRecord,
    RequestRecord,
    SignOfLifeRecord,
    Undecodable,
    decode_record,
)
from replica.notary.requests import Request
from replica.notary.rules import STATE_KEY, TX_KEY, Outcome
from replica.notary.salvage import NO_SALVAGES, Salvage, Salvages
from replica.notary.terms import signed_in
from tests.golden import samples
from tests.golden.make import FOLDER
from tests.pipeline.judged import Judged, by_replica, by_tables, in_slices, resolve_naively
from tests.pipeline.random_logs import chain, damaged, logs, requests
from tests.worlds.notary_logs import Log, LogMaker, begun, request_of
from tests.worlds.notary_logs import logs as mixed_logs
from tests.worlds.notary_logs import requests as asked_requests
from tests.worlds.party_logs import logs_with_parties, told_log
from tests.worlds.salvage_world import LostTail, restored, some_tail

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
@given(mixed_logs(), CUTS, CUTS, st.sampled_from([1, 2, 4, 8, 200]))
def test_slices_of_mixed_logs_give_what_a_replica_and_the_reference_judge_give(
    log: Log, cuts: list[int], runs: list[int], buckets: int
) -> None:
    """Goal: verdicts and acceptances are those of the other two. Method: random logs
    with retries under one command, periods, offsets, closed windows and repeated transactions."""
    values = [value for _, value in log]
    found = in_slices(values, cuts, buckets)
    assert found == by_replica(values, runs)
    assert found.verdicts == by_reference(log)


@pytest.mark.thorough
@settings(deadline=None, max_examples=500)
@given(logs_with_parties(), CUTS, CUTS, st.sampled_from([1, 2, 4, 8, 200]))
def test_slices_of_logs_with_registrations_give_what_the_others_give(
    log: Log, cuts: list[int], runs: list[int], buckets: int
) -> None:
    """Goal: verdicts, acceptances, officers and registrations are those of the other two. Method: random
    logs with officers, registrations, revocations and copies."""
    values = [value for _, value in log]
    found = in_slices(values, cuts, buckets)
    assert found == by_replica(values, runs)
    assert found.verdicts == by_reference(log)


KEYS = "pipeline.judging.keys"
MUTANTS_OF_KEYS: dict[str, tuple[str, Any]] = {
    "every key is in force": (f"{KEYS}._against", lambda registrations, offset, time_us: 0),
    "a later registration decides": (
        f"{KEYS}.bisect_left",
        lambda registrations, offset, key: len(registrations),
    ),
    "a registration counts for ever": (f"{KEYS}._against", lambda found, offset, time_us: 0 if found else NO_KEY),
    "a retry with a revoked key is refused": ("pipeline.judging.contested.counts", lambda *_: False),
    "a retry with a revoked key was notarised where it is": ("pipeline.judging.commands.Command.is_barred", False),
    "what an officer signed has an effect each time": (
        "replica.notary.parties.follows_on",
        lambda note, before: True,
    ),
    "registrations of earlier slices are not counted": ("pipeline.judging.plan.pairs_of", lambda notes: []),
    "notes of an activation that is not in force have an effect": (
        "pipeline.judging.plan._counts",
        lambda note, activation_id, repeats: True,
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS_OF_KEYS)
def test_each_part_of_judging_keys_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the comparison with the reference judge sees each mistake. Method: a log in which each one shows."""
    log = told_log()
    values = [value for _, value in log]
    expected = by_reference(log)
    assert in_slices(values, [5, 9]).verdicts == expected
    monkeypatch.setattr(*MUTANTS_OF_KEYS[name])
    assert in_slices(values, [5, 9]).verdicts != expected


@pytest.mark.thorough
@settings(deadline=None, max_examples=300)
@given(mixed_logs(), st.lists(asked_requests(), max_size=12), CUTS, CUTS, st.data())
def test_slices_of_a_log_with_a_lost_range_give_what_the_others_give(
    log: Log, asked: list[Request], cuts: list[int], runs: list[int], data: st.DataObject
) -> None:
    """Goal: what a salvage has stays notarised, spent and accepted. Method: random mixed logs lose a tail, which an
    index survives; under a new activation the lost records and others are written again."""
    assume(len(log) > 1)
    archived = data.draw(st.integers(0, len(log) - 1))
    salvage = LostTail(log, archived, (len(log) - 1,), -1).salvage()
    maker = LogMaker(
        values=[value for _, value in restored(LostTail(log, archived, (), -1), salvage, again(log, archived))]
    )
    maker.barrier(1_000_000)
    for number, request in enumerate(asked):
        maker.submit(request, command=f"c{number % 3}", deduplication_us=data.draw(st.integers(0, 9)))
    judged_alike(maker.log, salvage, cuts, runs, data.draw(st.sampled_from([1, 2, 4, 200])))


def test_a_lost_record_stays_accepted_whatever_its_command_met() -> None:
    """Goal: what a salvage has is not judged again. Method: a command's second acceptance, which its request asked for,
    is lost; both have one stamp."""
    maker = begun()
    maker.submit(request_of(1, (1,)), command="c")
    maker.submit(request_of(2, (2,)), command="c", after=1)
    salvage = LostTail(maker.log, 4, (4,), -1).salvage()
    judged_alike(restored(LostTail(maker.log, 4, (), -1), salvage), salvage, [], [], 1)


@settings(deadline=None, max_examples=200)
@given(logs_with_parties(), CUTS, CUTS, st.data())
def test_registrations_of_a_lost_range_stay_in_force(
    log: Log, cuts: list[int], runs: list[int], data: st.DataObject
) -> None:
    """Goal: officers, registrations and what was signed are not forgotten. Method: random logs with registrations lose
    a tail; then the same records come once more, under an activation that is not over."""
    assume(len(log) > 1)
    archived = data.draw(st.integers(0, len(log) - 1))
    salvage = LostTail(log, archived, (len(log) - 1,), -1).salvage()
    values = [value for _, value in restored(LostTail(log, archived, (), -1), salvage, again(log, 0))]
    judged_alike(list(enumerate(values)), salvage, cuts, runs, data.draw(st.sampled_from([1, 4])))


def again(log: Log, first: int) -> list[bytes]:
    return [value for _, value in log[first:]]


def judged_alike(log: Log, salvage: Salvage, cuts: list[int], runs: list[int], buckets: int) -> None:
    """By a replica, the jobs, the reference judge and the tables."""
    values, salvages = [value for _, value in log], Salvages([salvage])
    found = in_slices(values, cuts, buckets, salvages=salvages)
    assert found == by_replica(values, runs, salvages)
    assert found.verdicts == by_reference(log, salvages)
    tables = by_tables(values, runs, salvages)
    told = {row["log_offset"]: (row["outcome"], row["notarised_offset"]) for row in tables[VERDICTS].rows}
    assert told == {offset: (CODE_OF[outcome], at) for offset, (outcome, at) in found.verdicts.items()}
    of_lost = [row for row in tables[LOST].rows if row["tx_id"] is not None]
    kept = [entry for entry in salvage.entries() if entry.key[:1] == TX_KEY]
    assert [(row["log_offset"], row["tx_id"], row["content_digest"]) for row in of_lost] == [
        (entry.offset, entry.key[1:], entry.value[:32]) for entry in kept
    ]
    assert sum(len(row["inputs"]) for row in of_lost) == sum(entry.key[:1] == STATE_KEY for entry in salvage.entries())


def test_what_a_salvage_has_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the comparison sees lost records. Method: pass them over; a state of the lost tail is spent again."""
    tail = some_tail()
    salvage = tail.salvage()
    maker = LogMaker(values=[value for _, value in restored(tail, salvage)])
    maker.barrier(2)
    maker.submit(request_of(20, (10,)))
    held = Salvages([salvage])
    expected = by_replica(maker.values, salvages=held)
    assert in_slices(maker.values, salvages=held) == expected
    monkeypatch.setattr("tests.pipeline.judged.lost_claims", lambda ranges, salvages: np.zeros(0, CLAIM))
    assert in_slices(maker.values, salvages=held).verdicts != expected.verdicts


@pytest.mark.parametrize("earlier", [request_of(20, (10,)), request_of(5, (10, 11)), request_of(5, (30,))])
def test_a_salvage_that_the_log_contradicts_is_refused(earlier: Request, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a job stops where a reader stops. Method: what offset 5 of the lost tail spent, or notarised, was spent or
    notarised before it; the same without the check."""
    salvage = some_tail().salvage()
    maker = begun()
    maker.submit(earlier)
    maker.values += [b"nothing"] * (salvage.first - len(maker.values))
    maker.values += [salvage.lost_record(offset) for offset in range(salvage.first, salvage.last + 1)]
    for judge in (in_slices, by_replica):
        with pytest.raises(IndexMismatch):
            judge(maker.values, salvages=Salvages([salvage]))
    monkeypatch.setattr("pipeline.judging.entries._lost_count", lambda claims: 0)
    in_slices(maker.values, salvages=Salvages([salvage]))


def by_reference(
    log: Log, salvages: Salvages = NO_SALVAGES, judge: ReferenceJudge | None = None
) -> dict[int, tuple[Outcome, int | None]]:
    """The verdicts of the judge that shares no rules with the product."""
    judged = [one for one in (judge or ReferenceJudge(salvages)).judge(log) if isinstance(one, JudgedRequest)]
    outcome_of = {code: outcome for outcome, code in CODE_OF.items()}
    return {one.offset: (outcome_of[one.outcome], one.notarised_offset) for one in judged}


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
            request, _, terms, change = signed_in(record)
            window = request.window
            assert columns.deduplication_us[at] == record.deduplication_us
            assert columns.named_offsets(np.array([at])).tolist() == [
                -1 if terms.ledger_offset is None else terms.ledger_offset
            ]
            assert list(columns.commands(np.array([at]))) == [(change, terms.command_id)]
            assert change == change_id(terms.user_id, terms.command_id, terms.act_as)
            (start,), (size,) = columns.parties(np.array([at]))
            assert columns.raw[start : start + size].tobytes().decode() == request.party
            assert bytes(columns.activation[row]) == record.activation_id + bytes([record.format])
            assert (columns.sequence[row], columns.stamp_us[row]) == (record.sequence, record.stamp_us)
            assert columns.tx_ids()[at].tobytes() == request.tx_id
            assert columns.at(columns.public_key_at, 32)[at].tobytes() == record.public_key
            assert columns.at(columns.signature_at, 64)[at].tobytes() == record.signature
            assert columns.from_us[at] == (window.from_us or 0 if window else 0)
            until_us = None if window is None else window.until_us
            assert columns.until_us[at] == (2**63 - 1 if until_us is None else until_us)


def _kind_of(value: bytes) -> tuple[int, object]:
    try:
        record = decode_record(value, 2)
        if isinstance(record, RequestRecord):
            signed_in(record)
    except Undecodable:
        return UNDECODABLE, None
    except BadRequest:
        return BAD_REQUEST, record
    notes = dict.fromkeys((SignOfLifeRecord, RegistrationRecord), NOTE)
    return ({BarrierRecord: BARRIER, RequestRecord: REQUEST} | notes)[type(record)], record


@pytest.mark.parametrize("cuts", [[], [3, 6, 12, 20], list(range(1, 36))])
def test_the_kept_mixed_log_is_judged_as_it_was(cuts: list[int]) -> None:
    """Goal: verdicts, entries and acceptances of the golden log, byte by byte. Method: whole, and cut."""
    found = in_slices([bytes.fromhex(line["value"]) for line in _kept("log")], cuts)
    assert found.verdicts == {
        line["offset"]: (Outcome(line["outcome"]), line["notarised_offset"])
        for line in _kept("judged-by-rules-3")
        if "outcome" in line
    }
    assert dict(found.voids) == {at["offset"]: at["void"] for at in _kept("judged-by-rules-3") if "void" in at}
    for name, entries in (("index-by-rules-3", found.index), ("acceptances", found.commands)):
        assert [(key.hex(), value.hex()) for key, value in entries or []] == [
            (line["key"], line["value"]) for line in _kept(name)
        ]


def _kept(name: str) -> list[dict[str, Any]]:
    path = FOLDER / "logs" / "format-2" / f"{name}.jsonl"
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


CONTESTED, COMMANDS = "pipeline.judging.contested", "pipeline.judging.commands"
MUTANTS: dict[str, tuple[str, Any]] = {
    "an acceptance is forgotten": (f"{CONTESTED}.ACCEPTING", ()),
    "an acceptance is one only where the transaction is new": (f"{CONTESTED}.ACCEPTING", (None,)),
    "a deduplicated verdict is remembered": (f"{CONTESTED}.ACCEPTING", (None, DUPLICATE, DEDUPLICATED)),
    "an acceptance counts for ever": (
        f"{CONTESTED}.counts",
        lambda one, now, period, after: counts(one, 0, period, after),
    ),
    "the offset after which acceptances count is passed over": (
        f"{CONTESTED}.counts",
        lambda one, now, period, after: counts(one, now, period, None),
    ),
    "the period ends one microsecond early": (
        f"{CONTESTED}.counts",
        lambda one, now, period, after: counts(one, now, period if after is not None else period - 1, after),
    ),
    "commands are not judged": (f"{CONTESTED}.counts", lambda *_: False),
    "a command that is named after its transaction is reused": (f"{COMMANDS}.Command.is_named_after_tx", False),
    "every command is named after its transaction": (f"{COMMANDS}.Command.is_named_after_tx", True),
    "requests that share a transaction id are decided apart": (f"{CONTESTED}._shared", lambda claims: claims[:0]),
    "a request outside its window adds nothing": (
        f"{CONTESTED}._shared",
        lambda claims: claims[claims["role"] & CLOSED == 0],
    ),
    "a request outside its window is inside": (f"{CONTESTED}.Contender.is_closed", False),
    "commands are known by their first acceptance": (
        "tests.pipeline.judged.acceptance_values",
        lambda found: ((key[:33], value) for key, value in acceptance_values(found)),
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_each_rule_of_commands_is_needed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: the comparison sees each rule of commands. Method: leave one out, on logs that name them all."""
    logs_of_commands = [samples.log(), same_times()]
    for values in logs_of_commands:
        assert in_slices(values) == by_replica(values)
    target, wrong = MUTANTS[name]
    monkeypatch.setattr(target, property(lambda self: wrong) if isinstance(wrong, bool) else wrong)
    assert any(_differs(values) for values in logs_of_commands)


def same_times() -> list[bytes]:
    """Two transactions of one command at one time, in two activations; and ids with other content,
    under a command that is named after the transaction, and under one that is not."""
    maker = begun()
    for epoch, at in ((2, 10), (3, 20)):
        maker.barrier(epoch)
        for number in range(2):
            maker.submit(request_of(at + number, (at + number,)), command="c", deduplication_us=0)
    for command in (request_of(30).tx_id.hex(), "d"):
        tx_number = 30 if command != "d" else 40
        for states in ((tx_number,), (tx_number + 1,)):
            maker.submit(request_of(tx_number, states), command=command)
    return maker.values


def _differs(values: list[bytes]) -> bool:
    try:
        return in_slices(values) != by_replica(values)
    except InvariantBroken:
        return True


@pytest.mark.thorough
def test_the_naive_rule_gives_another_index() -> None:
    """Goal: the property sees the wrong rule. Method: A{x} B{x,y} C{y}, judged by "the first to name it has it"."""
    values = chain()
    assert in_slices(values) == by_replica(values)
    with pytest.raises(AssertionError):
        assert in_slices(values, resolve=resolve_naively).index == by_replica(values).index
