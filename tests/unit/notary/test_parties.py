"""Whose key is in force, by product and reference judge, over single cases and random logs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample
from pytest import MonkeyPatch

import replica.index.newest
import replica.notary.parties
import replica.notary.rules
from replica.checker.judge import JudgedRequest, JudgedVoid, ReferenceJudge
from replica.notary.errors import InvariantBroken
from replica.notary.genesis import OFFICERS_MAX, GenesisRecord, decode_genesis, encode_genesis
from replica.notary.outcomes import CODE_OF
from replica.notary.parties import (
    Officers,
    PartyNote,
    decode_officers,
    encode_officers,
    entry_key_of,
    in_force_after,
    is_about_parties,
    pairs_of,
    registration_id,
    why_no_effect,
)
from replica.notary.position import begin
from replica.notary.reading import read_records
from replica.notary.records import ActRecord, RegistrationRecord
from replica.notary.rules import Outcome, Verdict
from tests.next_version.release import PRESENT
from tests.worlds.notary_logs import (
    CLIENT_KEY,
    FOR_EVER,
    IN_FORCE,
    PARTY,
    TOPIC,
    Log,
    LogMaker,
    request_of,
    run_product,
)
from tests.worlds.party_logs import (
    OFFICER_KEYS,
    OTHER_PARTY,
    logs_with_parties,
)

FIRST, SECOND, STRANGER = OFFICER_KEYS
_many = settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
_cuts = st.lists(st.integers(0, 40), max_size=5)


def begun() -> LogMaker:
    """A log with one officer in force."""
    maker = LogMaker()
    maker.genesis(FIRST)
    maker.barrier(1)
    return maker


def outcomes(maker: LogMaker) -> list[str]:
    """The codes of all requests, on which product and reference judge agree."""
    product = [CODE_OF[verdict.outcome] for verdict in run_product(maker.log).verdicts.values()]
    assert product == [
        judged.outcome for judged in ReferenceJudge().judge(maker.log) if isinstance(judged, JudgedRequest)
    ]
    return product


def test_a_key_is_in_force_from_its_registration_on_until_its_revocation() -> None:
    """Goal: the log offset decides. Method: requests before, between and after; all in one run of records."""
    maker = begun()
    maker.submit(request_of(1, (1,)))
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    maker.submit(request_of(1, (1,)))
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(0, 0))
    maker.submit(request_of(2, (2,)))
    assert outcomes(maker) == ["PARTY_UNKNOWN", "NOTARISED", "KEY_NOT_VALID"]


@pytest.mark.parametrize(
    ("stamp_us", "code"), [(9, "KEY_NOT_VALID"), (10, "NOTARISED"), (19, "NOTARISED"), (20, "KEY_NOT_VALID")]
)
def test_the_period_is_judged_by_the_log_s_time(stamp_us: int, code: str) -> None:
    """Goal: from included, until excluded. Method: stamps at both ends."""
    maker = begun()
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(10, 20))
    maker.submit(request_of(1, (1,)), stamp_us=stamp_us)
    assert outcomes(maker) == [code]


def test_time_judged_is_the_highest_stamp_so_far() -> None:
    """Goal: an active whose clock lags revives no key. Method: a late stamp, after it an early one."""
    maker = begun()
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(10, 20))
    for number, stamp_us in enumerate((25, 15)):
        maker.submit(request_of(number, (number,)), stamp_us=stamp_us)
    assert outcomes(maker) == ["KEY_NOT_VALID", "KEY_NOT_VALID"]


def test_a_key_of_another_party_is_none() -> None:
    """Goal: the pair counts. Method: the same key for another name, another key for the same name."""
    maker = begun()
    maker.register(OTHER_PARTY, key=CLIENT_KEY, by=FIRST)
    maker.register(PARTY, key=b"p" * 32, by=FIRST)
    maker.submit(request_of(1, (1,)))
    assert outcomes(maker) == ["PARTY_UNKNOWN"]


def test_only_an_officer_registers() -> None:
    """Goal: no other key has an effect, nor a former officer's, and none uses up a number. Method: each kind."""
    maker = begun()
    maker.register(PARTY, key=CLIENT_KEY, by=STRANGER, before=0)
    maker.submit(request_of(1, (1,)))
    maker.act("officers", body=encode_officers([SECOND]), replaces=1, by=FIRST)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, before=0)
    maker.submit(request_of(1, (1,)))
    maker.register(PARTY, key=CLIENT_KEY, by=SECOND)
    maker.submit(request_of(1, (1,)))
    assert outcomes(maker) == ["PARTY_UNKNOWN", "PARTY_UNKNOWN", "NOTARISED"]


def test_an_old_registration_that_is_played_again_revives_no_key() -> None:
    """Goal: a revocation is final for whoever has an officer's old signatures only. Method: the same signed fields in a
    new record, under another activation too; after them a registration that an officer signed anew."""
    maker = begun()
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(1_000, 1_000))
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, before=0)
    maker.submit(request_of(1, (1,)))
    maker.barrier(2)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, before=0)
    maker.submit(request_of(1, (1,)))
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    maker.submit(request_of(1, (1,)))
    assert outcomes(maker) == ["KEY_NOT_VALID", "KEY_NOT_VALID", "NOTARISED"]


def test_a_registration_that_was_void_is_not_played_again_after_the_revocation() -> None:
    """Goal: as above, of what an officer signed and nobody counted. Method: a deposed active's registration; the same
    key is registered anew and revoked; then the bytes that were void, under the activation in force."""
    maker = begun()
    deposed = maker.activation_id
    maker.barrier(2)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(10, FOR_EVER), activation_id=deposed)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(20, FOR_EVER))
    maker.submit(request_of(1, (1,)))
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(0, 0))
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(10, FOR_EVER), before=0)
    maker.submit(request_of(2, (2,)))
    assert outcomes(maker) == ["NOTARISED", "KEY_NOT_VALID"]


def test_of_two_who_know_the_same_registrations_the_first_one_has_its_effect() -> None:
    """Goal: no officer overrides what another has just decided, without having seen it. Method: a revocation and a
    registration of one key that both follow on the same one; a number that is not reached yet."""
    maker = begun()
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(0, 0))
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(5, FOR_EVER), before=1)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(5, FOR_EVER), before=3)
    maker.submit(request_of(1, (1,)))
    assert outcomes(maker) == ["KEY_NOT_VALID"]


def test_a_removed_officer_s_registrations_stay() -> None:
    """Goal: a change of officers locks nobody out."""
    maker = begun()
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    maker.act("officers", body=encode_officers([SECOND]), replaces=1, by=FIRST)
    maker.submit(request_of(1, (1,)))
    assert outcomes(maker) == ["NOTARISED"]


def test_officers_are_not_overwritten_by_who_does_not_know_them() -> None:
    """Goal: of two at once one wins; a stranger neither wins nor uses up the number that an officer signed. Method:
    acts of a stranger, then of two officers who know of the same number."""
    maker = begun()
    maker.act("officers", body=encode_officers([STRANGER]), replaces=1, by=STRANGER)  # no officer
    maker.act("officers", body=b"no list", replaces=1, by=FIRST)
    maker.act("officers", body=encode_officers([FIRST, SECOND]), replaces=1, by=FIRST)
    maker.act("officers", body=encode_officers([FIRST]), replaces=1, by=FIRST)  # does not know the one before
    maker.act("officers", body=encode_officers([FIRST]), replaces=1, by=FIRST)  # nor does it when it comes again
    maker.register(PARTY, key=CLIENT_KEY, by=SECOND)
    maker.submit(request_of(1, (1,)))
    assert outcomes(maker) == ["NOTARISED"]
    assert run_product(maker.log).officers == Officers(2, frozenset([FIRST, SECOND]))


def test_a_registration_between_two_lists_of_officers_is_judged_by_the_one_before_it() -> None:
    """Goal: a rotation neither gives nor takes an effect, and no number is used up by a removed officer. Method: the
    officers change; the removed one and then the new one register with the same number."""
    maker = begun()
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    maker.act("officers", body=encode_officers([SECOND]), replaces=1, by=FIRST)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(0, 0), before=1)  # removed
    maker.submit(request_of(1, (1,)))
    maker.register(PARTY, key=CLIENT_KEY, by=SECOND, period_us=(0, 0), before=1)
    maker.submit(request_of(2, (2,)))
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(0, FOR_EVER), before=1)  # its number is past
    maker.submit(request_of(3, (3,)))
    assert outcomes(maker) == ["NOTARISED", "KEY_NOT_VALID", "KEY_NOT_VALID"]


def test_a_retry_after_the_revocation_gets_its_success_and_other_requests_learn_nothing() -> None:
    """Goal: no refusal misleads a caller whose transaction was notarised; conflicts are not shown to others."""
    maker = begun()
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    maker.submit(request_of(1, (1,)), command="c")
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST, period_us=(7, 3))
    maker.submit(request_of(1, (1,)), command="c")
    maker.submit(request_of(2, (1,)), command="c")  # else COMMAND_ID_REUSED
    maker.submit(request_of(2, (1,)), command="d")  # else STATE_CONFLICT
    maker.submit(request_of(1, (2,)), command="e")  # else TX_ID_REUSED
    maker.submit(request_of(1, (1,)), command="f")  # else an acceptance
    assert outcomes(maker) == ["NOTARISED", "DEDUPLICATED", *["KEY_NOT_VALID"] * 4]


BODY = encode_officers([FIRST, SECOND])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x92\x01",
        b"\x92\x01\x90",
        b"\x92\x02" + BODY[2:],
        b"\x93\x01" + BODY[2:],
        BODY + b"\0",
        BODY[:-1],
        BODY[:3] + BODY[37:] + BODY[3:37],
        BODY[:3] + BODY[3:37] * 2,
        b"\x92\x01\xdc\x00\x02" + BODY[3:],
        b"\x92\x01\xdc\x00\x65" + b"".join(b"\xc4\x20" + bytes([number]) * 32 for number in range(101)),
        b"\x92\x01\x91\xc4\x1f" + b"1" * 31,
        b"\x92\xcc\x01" + BODY[2:],
    ],
)
def test_a_list_of_officers_has_one_form(body: bytes) -> None:
    """Goal: two readers never disagree about a body. Method: everything near a good one, to both."""
    assert decode_officers(body) is None
    maker = LogMaker()
    maker.genesis(FIRST)
    maker.barrier(1)
    maker.act("officers", body=body, replaces=1, by=FIRST)
    judge = ReferenceJudge()
    list(judge.judge(maker.log))
    assert (judge.officers, judge.acts_on_officers) == ([FIRST], 1)


GENESIS = encode_genesis(GenesisRecord(1, b"L" * 16, (FIRST, SECOND)))


@pytest.mark.parametrize(
    "value",
    [
        b"",
        GENESIS[:-1],
        GENESIS + b"\0",
        b"\x95" + GENESIS[1:] + b"\0",
        b"\x94\x07" + GENESIS[2:],
        b"\x94\x08\x02" + GENESIS[3:],
        b"\x94\x08\xcc\x01" + GENESIS[3:],
        b"\x94\x08\x01\xc4\x0f" + GENESIS[6:],
        b"\x94\x08\x01\xc5\x00\x10" + GENESIS[5:],
        GENESIS[:21] + b"\x90",
        GENESIS[:22] + GENESIS[56:] + GENESIS[22:56],
        GENESIS[:22] + GENESIS[22:56] * 2,
    ],
)
def test_a_genesis_has_one_form(value: bytes) -> None:
    """Goal: two readers never disagree about the first officers. Method: everything near a good one, to both."""
    assert decode_genesis(GENESIS) == GenesisRecord(1, b"L" * 16, (FIRST, SECOND))
    assert decode_genesis(value) is None
    judge = ReferenceJudge()
    assert isinstance(judge.read(0, value), JudgedVoid)
    assert judge.officers == []


@pytest.mark.parametrize("late", [False, True])
def test_only_the_first_record_is_a_genesis(late: bool) -> None:
    """Goal: nobody who writes to the log names officers anew. Method: a second genesis, before and after a barrier."""
    maker = LogMaker()
    maker.genesis(FIRST)
    if late:
        maker.barrier(1)
    at = maker.genesis(STRANGER)
    run, judge = run_product(maker.log), ReferenceJudge()
    assert run.voids == {at: "undecodable"}
    assert [one.offset for one in judge.judge(maker.log) if isinstance(one, JudgedVoid)] == [at]
    assert (run.officers, judge.officers) == (Officers(1, frozenset([FIRST])), [FIRST])


def test_without_a_genesis_nobody_becomes_an_officer() -> None:
    """Goal: there is no race for the first officers. Method: an act that names its own signer, in a log without one."""
    maker = LogMaker()
    maker.barrier(1)
    maker.act("officers", body=encode_officers([FIRST]), by=FIRST)
    maker.register(PARTY, key=CLIENT_KEY, by=FIRST)
    run = run_product(maker.log)
    assert (run.officers, list(run.parties.entries())) == (Officers(), [])


@pytest.mark.parametrize("number", [1, 15, 16, 17, OFFICERS_MAX])
def test_both_readers_take_each_number_of_officers(number: int) -> None:
    """Goal: MessagePack's two heads of an array. Method: numbers on both sides."""
    keys = [bytes([at]) * 32 for at in range(number)]
    maker = LogMaker()
    maker.genesis(*keys)
    maker.barrier(1)
    judge = ReferenceJudge()
    list(judge.judge(maker.log))
    assert judge.officers == keys
    assert run_product(maker.log).officers == Officers(1, frozenset(keys))


def test_no_two_pairs_have_one_place_in_the_table() -> None:
    """Goal: where the name ends cannot be moved. Method: names and keys whose bytes together are the same."""
    assert registration_id("ab", b"c" * 32) != registration_id("abc", b"c" * 31)


# ---- random logs ----


def disagreement(log: Log, cuts: Sequence[int] = ()) -> bool:
    """Whether product and reference judge differ about a verdict, an acceptance or the officers."""
    judge = ReferenceJudge()
    judged = [one for one in judge.judge(log) if isinstance(one, JudgedRequest)]
    run = run_product(log, list(cuts))
    of_product = {at: (CODE_OF[v.outcome], v.notarised_offset) for at, v in run.verdicts.items()}
    return (
        of_product != {one.offset: (one.outcome, one.notarised_offset) for one in judged}
        or run.officers != Officers(judge.acts_on_officers, frozenset(judge.officers))
        or len(run.acceptances) != sum(one.outcome == "NOTARISED" for one in judged)
    )


def _differs_in_runs(log: Log) -> bool:
    try:
        return disagreement(log) or disagreement(log, range(0, len(log), 3))
    except InvariantBroken:  # the table refuses an entry that it has
        return True


@_many
@given(logs_with_parties(), _cuts)
def test_product_and_reference_judge_agree_about_parties(log: Log, cuts: list[int]) -> None:
    """Goal: two implementations, one truth, however reads are cut."""
    assert not disagreement(log, cuts)
    codes = [CODE_OF[verdict.outcome] for verdict in run_product(log).verdicts.values()]
    for code, count in Counter(codes).items():
        event(f"{code}: {min(count, 3)}")


@pytest.mark.thorough
@_many
@given(logs_with_parties(), _cuts)
def test_replay_on_newer_tables_gives_the_old_verdicts(log: Log, cuts: list[int]) -> None:
    """Goal: registrations may be known further than they are judged. Method: judge again on the final tables."""
    first = run_product(log)
    again = run_product(log, cuts, newer=first)
    assert (again.verdicts, again.index, again.acceptances) == (first.verdicts, first.index, first.acceptances)


@_many
@given(logs_with_parties())
def test_a_key_that_is_not_in_force_changes_nothing(log: Log) -> None:
    """Goal: no state, no transaction, no acceptance. Method: no entry of either table is of such a record."""
    run = run_product(log)
    refused = {at for at, v in run.verdicts.items() if v.outcome in (Outcome.PARTY_UNKNOWN, Outcome.KEY_NOT_VALID)}
    recorded_at = {int.from_bytes(value[-8:], "big") for value in (*run.index.values(), *run.acceptances.values())}
    assert not refused & recorded_at


# ---- mutants: each of them must be seen by the comparison ----

_judge = replica.notary.rules.RULES[PRESENT.rules]
_after = replica.notary.parties.in_force_after
_key_outcome = replica.notary.rules.key_outcome


def _key_mutant(change: Callable[[bytes | None, int], Outcome | None]) -> Callable[[MonkeyPatch], None]:
    return lambda patch: patch.setattr(replica.notary.rules, "key_outcome", change)


def _until_included(registration: bytes | None, judged_us: int) -> Outcome | None:
    if registration is not None and judged_us == replica.notary.parties.decode_registration(registration).until_us:
        judged_us -= 1
    return _key_outcome(registration, judged_us)


def _rules_mutant(change: Callable[[Any, Any, Any, bytes | None], Verdict]) -> Callable[[MonkeyPatch], None]:
    return lambda patch: patch.setitem(replica.notary.rules.RULES, PRESENT.rules, change)


def _key_first(entry: Any, recorded: Any, newest: Any, registration: bytes | None) -> Verdict:
    refusal = _key_outcome(registration, entry.judged_us)
    return Verdict(refusal) if refusal else _judge(entry, recorded, newest, registration)


def _key_last(entry: Any, recorded: Any, newest: Any, registration: bytes | None) -> Verdict:
    otherwise = _judge(entry, recorded, newest, IN_FORCE)
    is_success = otherwise.outcome is Outcome.NOTARISED
    return _judge(entry, recorded, newest, registration) if is_success else otherwise


def _by_own_stamp(entry: Any, recorded: Any, newest: Any, registration: bytes | None) -> Verdict:
    is_in_force = _key_outcome(registration, entry.record.stamp_us) is None
    return _judge(entry, recorded, newest, IN_FORCE if is_in_force else registration)


def _officers_mutant(**change: Any) -> Callable[[MonkeyPatch], None]:
    def after(officers: Officers, act: Any) -> Officers | None:
        named = decode_officers(act.body)
        follows = change.get("any_number") or act.replaces == officers.acts
        allowed = change.get("anybody") or act.public_key in officers.keys
        if named and follows and allowed:
            return Officers(officers.acts + 1, named)
        return Officers(officers.acts + 1, officers.keys) if change.get("counted") else None

    return lambda patch: patch.setattr(replica.notary.parties, "_officers_after", after)


def _anybody_registers(patch: MonkeyPatch) -> None:
    def after(officers: Officers, notes: Sequence[Any], *before: Any) -> tuple[Officers, dict[bytes, bytes]]:
        signers = frozenset(note.record.public_key for note in notes if isinstance(note.record, PartyNote))
        return _after(officers, notes, *before)[0], _after(Officers(officers.acts, signers), notes, *before)[1]

    patch.setattr(replica.index.newest, "in_force_after", after)


def _any_name(patch: MonkeyPatch) -> None:
    for module in (replica.notary.parties, replica.index.newest):
        patch.setattr(module, "registration_id", lambda _, key: registration_id("any", key))


MUTANTS: dict[str, Callable[[MonkeyPatch], None]] = {
    "no key is judged": _key_mutant(lambda registration, judged_us: None),
    "a registration is for ever": _key_mutant(lambda *of: Outcome.PARTY_UNKNOWN if of[0] is None else None),
    "until is included": _key_mutant(_until_included),
    "a key judged before a repeated success": _rules_mutant(_key_first),
    "only notarised verdicts are judged by key": _rules_mutant(_key_last),
    "the record's own stamp": _rules_mutant(_by_own_stamp),
    "officers by acts that do not follow": _officers_mutant(any_number=True),
    "officers by anybody": _officers_mutant(anybody=True),
    "acts without effect are numbered": _officers_mutant(counted=True),
    "anybody registers": _anybody_registers,
    "the name is no part of the pair": _any_name,
    "registrations of earlier runs are not counted": lambda patch: patch.setattr(
        replica.index.newest, "pairs_of", lambda _: []
    ),
    "what was signed has an effect again": lambda patch: patch.setattr(
        replica.notary.parties, "follows_on", lambda note, before: True
    ),
    "a registration may know of more than there are": lambda patch: patch.setattr(
        replica.notary.parties, "follows_on", lambda note, before: note.before >= before
    ),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", MUTANTS)
def test_each_mutant_of_what_judges_keys_is_seen(name: str, monkeypatch: MonkeyPatch) -> None:
    """Goal: the comparison above can fail. Method: break one thing, look for a log that shows it."""
    MUTANTS[name](monkeypatch)
    sought = settings(max_examples=3_000, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    try:
        find(logs_with_parties(), _differs_in_runs, settings=settings(sought, phases=[Phase.generate]))
    except NoSuchExample:
        pytest.fail(f"nothing shows the mutant: {name}")


@pytest.mark.thorough
@_many
@given(log=logs_with_parties())
def test_what_is_said_of_a_note_beforehand_is_what_the_log_makes_of_it(log: Log) -> None:
    """Goal: the active refuses just those notes that change nothing. Method: each note of random logs."""
    officers, newest = Officers(), dict[bytes, bytes]()
    for note in read_records(begin(TOPIC), log).counted:
        record = getattr(note, "record", None)
        if not isinstance(record, ActRecord | RegistrationRecord) or not is_about_parties(record):
            continue
        (pair,) = pairs_of([note]) or [b""]
        reason = why_no_effect(record, officers, newest.get(pair))
        before = officers
        officers, added = in_force_after(officers, [note], newest)
        value = added.get(entry_key_of(record, note.offset))
        assert (reason is None) == (value is not None)
        if isinstance(record, RegistrationRecord):
            newest |= {pair: value} if value else {}
        elif reason is not None:
            assert officers == before
