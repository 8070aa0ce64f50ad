"""Corruptions of good runs, second part: logs and completions."""

from __future__ import annotations

from hashlib import sha256
from random import Random

import msgspec

from replica.checker.findings import FindingCode
from replica.checker.history import Invoke, Ok, Refused
from replica.notary.records import BarrierRecord, RequestRecord, decode_record, encode_record, request_record
from tests.worlds.checker_mutants import first_success, is_conflict, mutant, own_success, pick, replace
from tests.worlds.checker_world import World
from tests.worlds.notary_logs import request_of, submission_of, tx


def _activation_in_force(world: World) -> bytes:
    records = [decode_record(value, 2) for value in world.values[1:]]  # behind the genesis
    return max((r.epoch, r.activation_id) for r in records if isinstance(r, BarrierRecord))[1]


# ---- the log ----


@mutant(FindingCode.LOST_ANSWER)
def the_log_lost_its_tail(world: World, random: Random) -> bool:
    newest = max((e.record_offset for e in world.history if own_success(e)), default=0)  # type: ignore[type-var]
    del world.values[newest:]
    return newest > 0


@mutant(FindingCode.WRONG_RECORD)
def the_log_lost_a_record_in_its_middle(world: World, random: Random) -> bool:
    oldest = min((e.record_offset for e in world.history if own_success(e)), default=None)  # type: ignore[type-var]
    if oldest is not None:
        del world.values[oldest]
    return oldest is not None


@mutant(FindingCode.OK_FOR_VOID)
def the_log_lost_a_barrier(world: World, random: Random) -> bool:
    world.values[1] = b""
    return True


@mutant(FindingCode.OK_FOR_VOID)
def a_record_became_undecodable(world: World, random: Random) -> bool:
    at = pick(world, random, own_success)
    if at is not None:
        offset = world.history[at].record_offset  # type: ignore[union-attr]
        world.values[offset] = world.values[offset][:-1]
    return at is not None


@mutant(FindingCode.ORDER_BROKEN)
def the_log_is_reordered(world: World, random: Random) -> bool:
    """Two records that have nothing to do with each other change places, and their answers with them."""
    answers = {e.record_offset: e for e in world.history if first_success(e)}
    sent = {(e.process, e.op): e.at_ns for e in world.history if isinstance(e, Invoke)}
    for first, early in sorted(answers.items()):
        for second, late in sorted(answers.items()):
            if first < second and early.at_ns < sent[late.process, late.op]:
                at_early, at_late = world.history.index(early), world.history.index(late)
                world.values[first], world.values[second] = world.values[second], world.values[first]
                world.history[at_early] = replace(early, record_offset=second, log_offset=second)
                world.history[at_late] = replace(late, record_offset=first, log_offset=first)
                return True
    return False


@mutant(FindingCode.RECORD_FROM_NOWHERE)
def a_command_ran_twice(world: World, random: Random) -> bool:
    """The record of an answered submission stands in the log a second time, under a number of its own."""
    in_force = _activation_in_force(world)
    told = {(e.process, e.op) for e in world.history if isinstance(e, Ok | Refused)}
    open_ids = {e.tx_id for e in world.history if isinstance(e, Invoke) and (e.process, e.op) not in told}
    for event in filter(own_success, world.history):
        record = decode_record(world.values[event.record_offset], 2)
        assert isinstance(record, RequestRecord)
        if record.activation_id == in_force and record.request[32:64].hex() not in open_ids:
            world.values.append(encode_record(replace(record, sequence=20_000)))
            return True
    return False


@mutant(FindingCode.RECORD_FROM_NOWHERE)
def a_record_that_nobody_sent_counts(world: World, random: Random) -> bool:
    record = request_record(2, _activation_in_force(world), 20_000, 1, submission_of(request_of(999)), 0)
    world.values.append(encode_record(record))
    return True


@mutant(FindingCode.WINNER_FROM_NOWHERE)
def the_winner_of_a_conflict_was_sent_after_the_answer(world: World, random: Random) -> bool:
    at = pick(world, random, is_conflict)
    if at is None:
        return False
    hashes = {sha256(tx(number)).hexdigest(): tx(number).hex() for number in range(61)}
    winner = hashes[world.history[at].conflicts[0].consumed_by_hash]  # type: ignore[union-attr]
    names = {(e.process, e.op) for e in world.history if isinstance(e, Invoke) and e.tx_id == winner}
    moved = [e for e in world.history if (e.process, e.op) in names]
    kept = [e for e in world.history if (e.process, e.op) not in names]
    world.history = kept + [replace(e, process=f"late-{e.process}", at_ns=e.at_ns + 10**9) for e in moved]
    return True


# ---- completions ----


def _row(world: World, random: Random) -> int:
    return random.randrange(len(world.completions))


def _renumber(world: World) -> None:
    world.completions = [replace(row, ledger_offset=at) for at, row in enumerate(world.completions, 1)]


@mutant(FindingCode.COMPLETION_MISSING)
def a_completion_is_missing(world: World, random: Random) -> bool:
    del world.completions[_row(world, random)]
    _renumber(world)
    return True


@mutant(FindingCode.COMPLETION_MISSING)
def the_last_completion_is_missing(world: World, random: Random) -> bool:
    del world.completions[-1]
    return True


@mutant(FindingCode.COMPLETION_EXTRA)
def a_completion_is_there_twice(world: World, random: Random) -> bool:
    at = _row(world, random)
    world.completions.insert(at, world.completions[at])
    _renumber(world)
    return True


@mutant(FindingCode.COMPLETION_EXTRA)
def a_completion_comes_from_beyond_the_log(world: World, random: Random) -> bool:
    last = world.completions[-1]
    world.completions.append(replace(last, ledger_offset=last.ledger_offset + 1, log_offset=len(world.values) + 5))
    return True


@mutant(FindingCode.COMPLETION_EXTRA)
def completions_are_out_of_log_order(world: World, random: Random) -> bool:
    rows = world.completions
    places = [at for at in range(len(rows) - 1) if rows[at].log_offset != rows[at + 1].log_offset]
    at = random.choice(places)
    rows[at], rows[at + 1] = rows[at + 1], rows[at]
    _renumber(world)
    return True


@mutant(FindingCode.COMPLETION_MISNUMBERED)
def ledger_offsets_have_a_gap(world: World, random: Random) -> bool:
    at = _row(world, random)
    world.completions = [
        replace(row, ledger_offset=row.ledger_offset + (place >= at)) for place, row in enumerate(world.completions)
    ]
    return True


@mutant(FindingCode.COMPLETION_MISNUMBERED)
def two_completions_share_a_ledger_offset(world: World, random: Random) -> bool:
    at = random.randrange(1, len(world.completions))
    row = world.completions[at]
    world.completions[at] = replace(row, ledger_offset=row.ledger_offset - 1)
    return True


def _change_row(world: World, random: Random, of: str, **changes: object) -> bool:
    places = [at for at, row in enumerate(world.completions) if row.outcome == of]
    if places:
        at = random.choice(places)
        world.completions[at] = replace(world.completions[at], **changes)
    return bool(places)


@mutant(FindingCode.COMPLETION_WRONG)
def a_completion_has_another_outcome(world: World, random: Random) -> bool:
    return _change_row(world, random, "TIME_WINDOW_CLOSED", outcome="NOTARISED")


@mutant(FindingCode.COMPLETION_WRONG)
def a_completion_names_another_offset(world: World, random: Random) -> bool:
    return _change_row(world, random, "NOTARISED", notarised_offset=0)


@mutant(FindingCode.COMPLETION_WRONG)
def a_completion_has_other_conflicts(world: World, random: Random) -> bool:
    return _change_row(world, random, "STATE_CONFLICT", detail=msgspec.msgpack.encode([]))


@mutant(FindingCode.COMPLETION_WRONG)
def a_completion_was_recorded_by_another_clock(world: World, random: Random) -> bool:
    return _change_row(world, random, "NOTARISED", recorded_us=1)


@mutant(FindingCode.COMPLETION_WRONG)
def a_completion_is_of_another_submission(world: World, random: Random) -> bool:
    return _change_row(world, random, "NOTARISED", submission_id="another")


@mutant(FindingCode.COMPLETION_WRONG)
def a_repeated_success_is_published_as_a_first_one(world: World, random: Random) -> bool:
    return _change_row(world, random, "DEDUPLICATED", outcome="NOTARISED")


@mutant(FindingCode.COMPLETION_WRONG)
def a_repeated_success_is_published_at_its_own_offset(world: World, random: Random) -> bool:
    return _change_row(world, random, "DEDUPLICATED", notarised_offset=0)


@mutant(FindingCode.COMPLETION_MISSING)
def a_repeated_success_has_no_completion(world: World, random: Random) -> bool:
    places = [at for at, row in enumerate(world.completions) if row.outcome == "DEDUPLICATED"]
    if places:
        del world.completions[random.choice(places)]
        _renumber(world)
    return bool(places)
