"""Corruptions of good runs, first part: answers that differ from the log.

Each mutant changes a run in place, and returns False when the run has nothing of its kind to corrupt.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from random import Random

import msgspec
from nacl.signing import SigningKey

from replica.checker.door import request_in
from replica.checker.findings import FindingCode
from replica.checker.history import ConflictText, Event, Invoke, Ok, Refused, Signed, Unknown
from replica.notary.records import RequestRecord, decode_record
from replica.notary.terms import Terms, encode_canonical, signed_in
from tests.worlds.checker_world import STRANGER, World, receipt_of
from tests.worlds.notary_logs import tx

replace = msgspec.structs.replace

Mutant = Callable[[World, Random], bool]
MUTANTS: dict[str, tuple[Mutant, FindingCode]] = {}


def mutant(code: FindingCode) -> Callable[[Mutant], Mutant]:
    """Register a corruption and the finding it must lead to. It returns False when the run has nothing to corrupt."""

    def register(function: Mutant) -> Mutant:
        MUTANTS[function.__name__] = (function, code)
        return function

    return register


# ---- choosing what to corrupt ----


def pick(world: World, random: Random, condition: Callable[[Event], bool]) -> int | None:
    places = [at for at, event in enumerate(world.history) if condition(event)]
    return random.choice(places) if places else None


def change_event(
    world: World, random: Random, condition: Callable[[Event], bool], change: Callable[..., Event]
) -> bool:
    at = pick(world, random, condition)
    if at is not None:
        world.history[at] = change(world.history[at])
    return at is not None


def own_success(event: Event) -> bool:
    return isinstance(event, Ok) and event.record_offset is not None


def first_success(event: Event) -> bool:
    return isinstance(event, Ok) and event.record_offset == event.log_offset


def is_recalled(event: Event) -> bool:
    return isinstance(event, Ok) and event.record_offset is None


def is_conflict(event: Event) -> bool:
    return isinstance(event, Refused) and event.code == "STATE_CONFLICT"


def is_closed(event: Event) -> bool:
    return isinstance(event, Refused) and event.code == "TIME_WINDOW_CLOSED"


def _as_success(event: Refused, world: World) -> Ok:
    assert event.record_offset is not None
    record = decode_record(world.values[event.record_offset], 2)
    assert isinstance(record, RequestRecord)
    sent = next(e for e in world.history if isinstance(e, Invoke) and (e.process, e.op) == (event.process, event.op))
    digest = next(row.content_digest for row in world.completions if row.log_offset == event.record_offset)
    assert len(bytes.fromhex(sent.tx_id)) == 32
    return Ok(event.process, event.op, event.at_ns, digest.hex(), event.record_offset, event.record_offset)


# ---- answers ----


@mutant(FindingCode.DOUBLE_SPEND)
def a_conflict_is_answered_as_success(world: World, random: Random) -> bool:
    return change_event(world, random, is_conflict, lambda event: _as_success(event, world))


@mutant(FindingCode.WRONG_VERDICT)
def a_closed_window_is_answered_as_success(world: World, random: Random) -> bool:
    return change_event(world, random, is_closed, lambda event: _as_success(event, world))


@mutant(FindingCode.WRONG_VERDICT)
def a_success_is_answered_as_conflict(world: World, random: Random) -> bool:
    conflict = (ConflictText(f"{'ab' * 32}:1", "cd" * 32, "input"),)
    return change_event(
        world,
        random,
        own_success,
        lambda e: Refused(e.process, e.op, e.at_ns, "STATE_CONFLICT", e.record_offset, conflict),
    )


@mutant(FindingCode.WRONG_VERDICT)
def a_reused_id_is_answered_as_closed_window(world: World, random: Random) -> bool:
    reused = lambda event: isinstance(event, Refused) and event.code == "TX_ID_REUSED"  # noqa: E731
    return change_event(world, random, reused, lambda event: replace(event, code="TIME_WINDOW_CLOSED"))


@mutant(FindingCode.WRONG_CONFLICT)
def a_conflict_names_another_winner(world: World, random: Random) -> bool:
    def change(event: Refused) -> Refused:
        first = replace(event.conflicts[0], consumed_by_hash=sha256(b"someone else").hexdigest())
        return replace(event, conflicts=(first, *event.conflicts[1:]))

    return change_event(world, random, is_conflict, change)


@mutant(FindingCode.WRONG_CONFLICT)
def a_conflict_names_the_winner_itself_instead_of_its_hash(world: World, random: Random) -> bool:
    def change(event: Refused) -> Refused:
        hashes = {sha256(tx(number)).hexdigest(): tx(number).hex() for number in range(61)}
        first = event.conflicts[0]
        return replace(event, conflicts=(replace(first, consumed_by_hash=hashes[first.consumed_by_hash]),))

    return change_event(world, random, lambda e: is_conflict(e) and len(e.conflicts) == 1, change)  # type: ignore[union-attr]


@mutant(FindingCode.WRONG_CONFLICT)
def a_conflict_leaves_a_state_out(world: World, random: Random) -> bool:
    return change_event(world, random, is_conflict, lambda event: replace(event, conflicts=event.conflicts[1:]))


@mutant(FindingCode.WRONG_CONFLICT)
def a_conflict_swaps_input_and_reference(world: World, random: Random) -> bool:
    def change(event: Refused) -> Refused:
        other = {"input": "reference", "reference": "input"}
        return replace(event, conflicts=tuple(replace(c, usage=other[c.usage]) for c in event.conflicts))

    return change_event(world, random, is_conflict, change)


@mutant(FindingCode.WRONG_OFFSET)
def a_retry_is_answered_with_its_own_offset(world: World, random: Random) -> bool:
    retried = lambda e: own_success(e) and e.log_offset != e.record_offset  # noqa: E731
    return change_event(world, random, retried, lambda event: replace(event, log_offset=event.record_offset))


@mutant(FindingCode.WRONG_OFFSET)
def afirst_success_names_another_offset(world: World, random: Random) -> bool:
    return change_event(world, random, first_success, lambda event: replace(event, log_offset=event.log_offset + 1))


@mutant(FindingCode.LOST_ANSWER)
def a_recalled_success_names_a_place_where_it_is_not(world: World, random: Random) -> bool:
    return change_event(world, random, is_recalled, lambda event: replace(event, log_offset=0))


@mutant(FindingCode.LOST_ANSWER)
def a_success_names_no_record(world: World, random: Random) -> bool:
    fresh = lambda event: own_success(event) and not event.duplicate  # noqa: E731
    return change_event(world, random, fresh, lambda event: replace(event, record_offset=None))


@mutant(FindingCode.LOST_ANSWER)
def a_conflict_from_memory_names_no_record(world: World, random: Random) -> bool:
    return change_event(world, random, is_conflict, lambda event: replace(event, record_offset=None))


@mutant(FindingCode.WRONG_RECORD)
def an_answer_names_the_record_of_another(world: World, random: Random) -> bool:
    def is_other(event: Event) -> bool:
        if not own_success(event):
            return False
        record = decode_record(world.values[event.record_offset + 1], 2) if _has_next(event) else None  # type: ignore[union-attr]
        return isinstance(record, RequestRecord)

    def _has_next(event: Event) -> bool:
        return event.record_offset + 1 < len(world.values)  # type: ignore[union-attr,operator]

    counting = {row.log_offset for row in world.completions}
    return change_event(
        world,
        random,
        lambda e: is_other(e) and e.record_offset + 1 in counting,  # type: ignore[union-attr,operator]
        lambda e: replace(e, record_offset=e.record_offset + 1),
    )


@mutant(FindingCode.SHARED_RECORD)
def one_record_answers_two(world: World, random: Random) -> bool:
    at = pick(world, random, own_success)
    if at is None:
        return False
    answer = world.history[at]
    sent = next(e for e in world.history if isinstance(e, Invoke) and (e.process, e.op) == (answer.process, answer.op))
    world.history += [replace(sent, process="z", op=0), replace(answer, process="z", op=0)]
    return True


@mutant(FindingCode.OK_FOR_VOID)
def a_zombie_answers_ok_for_its_void_record(world: World, random: Random) -> bool:
    for at, event in enumerate(world.history):
        if isinstance(event, Unknown):
            sent = next(
                e for e in world.history if isinstance(e, Invoke) and (e.process, e.op) == (event.process, event.op)
            )
            for offset, value in enumerate(world.values[1:], 1):  # behind the genesis
                record = decode_record(value, 2)
                if not isinstance(record, RequestRecord) or record.sequence != 10_000 or sent.command is None:
                    continue
                if signed_in(record).terms.command_id == sent.command.command_id:
                    world.history[at] = Ok(event.process, event.op, event.at_ns, "00" * 32, offset, offset)
                    return True
    return False


@mutant(FindingCode.WRONG_DIGEST)
def a_success_certifies_other_content(world: World, random: Random) -> bool:
    return change_event(world, random, own_success, lambda event: replace(event, content_digest="ee" * 32))


@mutant(FindingCode.WRONG_TIME)
def a_window_was_judged_by_another_clock(world: World, random: Random) -> bool:
    return change_event(world, random, is_closed, lambda event: replace(event, judged_us=event.judged_us + 1))


@mutant(FindingCode.DENIED)
def a_notarised_transaction_is_not_found(world: World, random: Random) -> bool:
    tx_of = lambda answer: world.history[_sent(world, answer)].tx_id  # type: ignore[union-attr] # noqa: E731
    places = [at for at, event in enumerate(world.history) if is_recalled(event) and not event.duplicate]
    for at in places:
        found = world.history[at]
        if any(own_success(e) and tx_of(e) == tx_of(found) for e in world.history[: at - 1]):
            world.history[at] = Refused(found.process, found.op, found.at_ns, "TX_NOT_FOUND")
            return True
    return False


@mutant(FindingCode.PASSIVE_ANSWERED)
def an_answer_comes_from_a_passive_replica(world: World, random: Random) -> bool:
    return change_event(world, random, own_success, lambda event: replace(event, replica="R9"))


@mutant(FindingCode.PASSIVE_ANSWERED)
def an_answer_comes_from_another_epoch(world: World, random: Random) -> bool:
    return change_event(world, random, own_success, lambda event: replace(event, epoch=event.epoch + 1, replica=None))


@mutant(FindingCode.PASSIVE_ANSWERED)
def a_recalled_success_comes_from_an_epoch_that_never_was(world: World, random: Random) -> bool:
    return change_event(world, random, is_recalled, lambda event: replace(event, epoch=77, replica="R77"))


@mutant(FindingCode.RECEIPT_INVALID)
def a_receipt_is_of_another_transaction(world: World, random: Random) -> bool:
    return change_event(
        world,
        random,
        own_success,
        lambda e: replace(e, receipt=receipt_of(b"x" * 32, bytes.fromhex(e.content_digest))),
    )


@mutant(FindingCode.RECEIPT_INVALID)
def a_receipt_is_over_other_content(world: World, random: Random) -> bool:
    def change(event: Ok) -> Ok:
        assert event.receipt is not None
        return replace(event, receipt=receipt_of(bytes.fromhex(event.receipt.tx_id), b"other content".ljust(32)))

    return change_event(world, random, own_success, change)


@mutant(FindingCode.RECEIPT_INVALID)
def a_receipt_is_signed_by_another_key(world: World, random: Random) -> bool:
    def change(event: Ok) -> Ok:
        assert event.receipt is not None
        parts = bytes.fromhex(event.receipt.tx_id), bytes.fromhex(event.receipt.content_digest)
        return replace(event, receipt=receipt_of(*parts, SigningKey(b"\x99" * 32)))

    return change_event(world, random, own_success, change)


@mutant(FindingCode.RECEIPT_INVALID)
def a_receipt_has_a_damaged_path(world: World, random: Random) -> bool:
    def change(event: Ok) -> Ok:
        return replace(event, receipt=replace(event.receipt, path=["00" * 32]))

    return change_event(world, random, own_success, change)


@mutant(FindingCode.ORDER_BROKEN)
def a_success_is_recalled_before_anybody_sent_it(world: World, random: Random) -> bool:
    at = pick(world, random, is_recalled)
    if at is None:
        return False
    answer = world.history[at]
    sent = next(n for n, e in enumerate(world.history) if isinstance(e, Invoke) and _is_of(e, answer))
    world.history[sent] = replace(world.history[sent], at_ns=0)
    world.history[at] = replace(answer, at_ns=1)
    return True


def _is_of(event: Event, other: Event) -> bool:
    return (event.process, event.op) == (other.process, other.op)


# ---- commands that the log judged ----


def _is_repeated(event: Event) -> bool:
    return own_success(event) and isinstance(event, Ok) and event.duplicate


def _is_reused_in_log(event: Event) -> bool:
    return isinstance(event, Refused) and event.code == "COMMAND_ID_REUSED" and event.record_offset is not None


@mutant(FindingCode.WRONG_VERDICT)
def a_repeated_success_is_answered_as_a_new_one(world: World, random: Random) -> bool:
    return change_event(world, random, _is_repeated, lambda event: replace(event, duplicate=False))


@mutant(FindingCode.WRONG_OFFSET)
def a_repeated_success_names_its_own_record(world: World, random: Random) -> bool:
    return change_event(world, random, _is_repeated, lambda event: replace(event, log_offset=event.record_offset))


@mutant(FindingCode.WRONG_VERDICT)
def a_repeated_success_is_refused_as_reused(world: World, random: Random) -> bool:
    code = "COMMAND_ID_REUSED"
    return change_event(world, random, _is_repeated, lambda e: Refused(e.process, e.op, e.at_ns, code, e.record_offset))


@mutant(FindingCode.WRONG_VERDICT)
def a_reused_command_is_answered_as_success(world: World, random: Random) -> bool:
    def change(event: Refused) -> Ok:
        digest = next(row.content_digest for row in world.completions if row.log_offset == event.record_offset)
        offset = event.record_offset or 0
        return Ok(event.process, event.op, event.at_ns, digest.hex(), offset, offset)

    return change_event(world, random, _is_reused_in_log, change)


@mutant(FindingCode.WRONG_VERDICT)
def a_reused_command_is_answered_as_a_reused_transaction(world: World, random: Random) -> bool:
    return change_event(world, random, _is_reused_in_log, lambda event: replace(event, code="TX_ID_REUSED"))


# ---- refusals without a record ----


def _is_refused(code: str) -> Callable[[Event], bool]:
    return lambda event: isinstance(event, Refused) and event.code == code


def _sent(world: World, answer: Event) -> int:
    return next(n for n, event in enumerate(world.history) if isinstance(event, Invoke) and _is_of(event, answer))


def _sign(world: World, answer: Event, key: SigningKey) -> None:
    """Let what was refused have been signed rightly, by this key."""
    at = _sent(world, answer)
    invoke = world.history[at]
    assert isinstance(invoke, Invoke)
    assert invoke.content is not None
    assert invoke.command is not None
    ids = invoke.command
    request = request_in(bytes.fromhex(invoke.tx_id), invoke.content)
    raw = encode_canonical(request, Terms(ids.user_id, ids.command_id, tuple(sorted(ids.act_as))))
    signed = Signed(bytes(key.verify_key).hex(), key.sign(raw).signature.hex(), raw.hex())
    world.history[at] = replace(invoke, signed=signed)


@mutant(FindingCode.REFUSED_WRONGLY)
def a_signature_that_holds_is_refused(world: World, random: Random) -> bool:
    at = pick(world, random, _is_refused("SIGNATURE_INVALID"))
    if at is not None:
        _sign(world, world.history[at], STRANGER)
    return at is not None


@mutant(FindingCode.REFUSED_WRONGLY)
def a_caller_is_denied_where_nobody_asks_for_tokens(world: World, random: Random) -> bool:
    world.scope = replace(world.scope, tokens=False)
    return pick(world, random, _is_refused("PERMISSION_DENIED")) is not None


@mutant(FindingCode.REFUSED_WRONGLY)
def a_fresh_command_is_said_to_be_reused(world: World, random: Random) -> bool:
    code = "COMMAND_ID_REUSED"
    return change_event(world, random, is_conflict, lambda e: Refused(e.process, e.op, e.at_ns, code))


@mutant(FindingCode.REFUSED_WRONGLY)
def the_same_submission_again_is_said_to_be_reused(world: World, random: Random) -> bool:
    contents: dict[object, set[object]] = {}
    for event in world.history:
        if isinstance(event, Invoke):
            contents.setdefault(event.command, set()).add((event.tx_id, event.content))

    def recalled(event: Event) -> bool:
        if not (is_recalled(event) and event.duplicate):
            return False
        command = world.history[_sent(world, event)].command  # type: ignore[union-attr]
        return len(contents[command]) == 1

    code = "COMMAND_ID_REUSED"
    return change_event(world, random, recalled, lambda e: Refused(e.process, e.op, e.at_ns, code))


@mutant(FindingCode.REFUSED_WRONGLY)
def a_command_is_said_to_be_reused_before_its_other_use(world: World, random: Random) -> bool:
    at = pick(world, random, _is_refused("COMMAND_ID_REUSED"))
    if at is None:
        return False
    answer = world.history[at]
    sent = _sent(world, answer)
    world.history[sent] = replace(world.history[sent], at_ns=0)
    world.history[at] = replace(answer, at_ns=0)
    return True


@mutant(FindingCode.REFUSED_WRONGLY)
def a_request_in_canonical_form_is_said_to_be_malformed(world: World, random: Random) -> bool:
    code = random.choice(["MALFORMED_REQUEST", "MALFORMED_JSON", "TOO_MANY_STATES", "TX_NOT_FOUND", "OFFSET_PRUNED"])
    return change_event(world, random, is_conflict, lambda e: Refused(e.process, e.op, e.at_ns, code))


@mutant(FindingCode.REFUSED_WRONGLY)
def a_look_up_is_refused_as_a_submission_is(world: World, random: Random) -> bool:
    code = random.choice(["PARTY_UNKNOWN", "SIGNATURE_INVALID", "COMMAND_ID_REUSED", "MALFORMED_REQUEST"])
    return change_event(world, random, _is_refused("TX_NOT_FOUND"), lambda event: replace(event, code=code))
