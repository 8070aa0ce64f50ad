"""The tail salvage: how a log with a lost range is read, who may serve with it, and how it is checked."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.archive.copy import copy_archive
from pipeline.archive.salvage import IndexTail
from replica.active.publisher import completions_of
from replica.active.signer import FileSigner
from replica.checker.check import Scope, check
from replica.checker.completions import CompletionRow
from replica.checker.history import Event, Invoke, Ok, Refused, invoke_submission
from replica.checker.judge import JudgedRequest, ReferenceJudge
from replica.following.apply import Applier, judge_records
from replica.following.index_check import begin_check, check_complete, continue_check
from replica.following.salvaged import SalvagesFound, keep_salvage, read_salvages, salvages_in
from replica.index.memory import MemoryIndex
from replica.notary.acceptances import COMMAND_KEY
from replica.notary.canonical import content_digest
from replica.notary.codes import Code
from replica.notary.counted import CountedRequest
from replica.notary.errors import (
    ArchiveDamaged,
    IndexMismatch,
    RestoreRefused,
    SalvageDamaged,
    SalvageMissing,
    StoreMismatch,
)
from replica.notary.position import begin
from replica.notary.rules import STATE_KEY, TX_KEY, Outcome
from replica.notary.salvage import (
    NO_SALVAGES,
    LostEntry,
    Salvages,
    bound_name,
    bound_topic_id,
    decode_salvage,
    encode_salvage,
    salvages_named,
)
from replica.store.adopt import position_in
from replica.store.memory import MemoryDatabase
from tests.worlds.archive_world import SIGNER, make_archive, some_log
from tests.worlds.notary_logs import TOPIC, Log, LogMaker, begun, logs, request_of, requests, state, submission_of, tx
from tests.worlds.salvage_world import RESTORED, LostTail, completions_in, read, restored, some_tail, tail_of

OTHER_KEY = FileSigner(Ed25519PrivateKey.from_private_bytes(b"b" * 32))


def entry(offset: int, key: bytes, name: bytes) -> LostEntry:
    return LostEntry(offset, key, name + offset.to_bytes(8, "big"))


# ---- reading past a lost range ----


def suffix_of(asked: list[object], maker: LogMaker) -> list[bytes]:
    start = len(maker.values)
    maker.barrier(1_000_000)
    for request in asked:
        maker.submit(request, stamp_us=1_000_000)  # type: ignore[arg-type]
    return maker.values[start:]


@pytest.mark.thorough
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(logs(), st.lists(requests(), max_size=12), st.data())
def test_a_restored_log_judges_as_the_lost_one_would_have(log: Log, asked: list[object], data: st.DataObject) -> None:
    """Goal: no double spend, and the same verdicts at the same offsets. Method: random logs lose a random tail behind
    the genesis, which an index survives; what is written since is judged as behind the log that nobody lost, however it
    is cut."""
    if len(log) < 2:
        return
    archived = data.draw(st.integers(1, len(log) - 1))
    published, ledger_end = data.draw(st.integers(-1, len(log) - 1)), len(completions_in(log, 0, len(log)))
    tail = LostTail(log, archived, (len(log) - 1,), published, ledger_end=ledger_end)
    found = tail.salvage()
    suffix = suffix_of(asked, LogMaker(values=[value for _, value in log]))
    whole = [*log, *enumerate(suffix, len(log))]
    index = read(restored(tail, found, suffix), Salvages([found]), data.draw(st.integers(1, 9)))
    expected = MemoryIndex()
    Applier(expected, TOPIC).apply(whole)
    assert list(index.entries()) == list(expected.entries())
    applied, _ = judge_records(index, begin(RESTORED), restored(tail, found, suffix), Salvages([found]))
    of_whole, _ = judge_records(expected, begin(TOPIC), whole)
    assert verdicts_from(applied, len(log)) == verdicts_from(of_whole, len(log))


def verdicts_from(applied: object, offset: int) -> list[object]:
    return [
        (counted.offset, verdict)
        for counted, verdict in applied.decided()  # type: ignore[attr-defined]
        if counted.offset >= offset
    ]


def test_a_state_of_the_lost_tail_stays_spent_within_one_run() -> None:
    """Goal: also the record right behind the range is judged with it. Method: one run has the whole restored log."""
    tail = some_tail()
    found = tail.salvage()
    maker = LogMaker(values=[value for _, value in tail.log])
    suffix = suffix_of([request_of(50, (18,)), request_of(9, (18,), (19,)), request_of(51, (), (10,))], maker)
    applied, _ = judge_records(MemoryIndex(), begin(RESTORED), restored(tail, found, suffix), Salvages([found]))
    spent, again, referred = [verdict for _, verdict in applied.decided()][-3:]
    assert spent is not None and again is not None and referred is not None
    assert (spent.outcome, referred.outcome) == (Outcome.CONFLICT, Outcome.CONFLICT)
    assert (again.outcome, again.notarised_offset) == (Outcome.NOTARISED, 9)


def test_a_lost_tail_forgets_neither_command_nor_transaction() -> None:
    """Goal: what an index accepted stays accepted, for every reader alike. Method: a command of the archive and two of
    the tail are sent again; the product, however the log is cut, and the reference judge."""
    hour_us = 3_600_000_000
    maker = begun()
    for number, command in ((1, "archived"), (2, "lost"), (3, "gone")):
        maker.submit(request_of(number, (number,)), command=command, deduplication_us=hour_us)
    tail = LostTail(maker.log, 4, (5,), 5)
    found = tail.salvage()
    start = len(maker.values)
    maker.barrier(2)
    again = [
        (request_of(4, (4,)), "archived", Outcome.COMMAND_ID_REUSED, None),
        (request_of(2, (2,)), "lost", Outcome.DEDUPLICATED, 4),
        (request_of(5, (5,)), "lost", Outcome.COMMAND_ID_REUSED, None),
        (request_of(6, (6,)), "gone", Outcome.COMMAND_ID_REUSED, None),
        (request_of(3, (3,)), "another", Outcome.NOTARISED, 5),
        (request_of(7, (3,)), "spends again", Outcome.CONFLICT, None),
    ]
    for request, command, _, _ in again:
        maker.submit(request, command=command, deduplication_us=hour_us)
    log, held = restored(tail, found, maker.values[start:]), Salvages([found])
    applied, _ = judge_records(read(log, held), begin(RESTORED), log, held)
    verdicts = [verdict for entry, verdict in applied.decided() if entry.offset >= start and verdict is not None]
    assert [(one.outcome, one.notarised_offset) for one in verdicts] == [(each[2], each[3]) for each in again]
    judged = [one for one in ReferenceJudge(held).judge(log) if isinstance(one, JudgedRequest) and one.offset >= start]
    assert [one.notarised_offset for one in judged] == [each[3] for each in again]
    index = read(log, held, 1)
    assert dict(index.entries()) == dict(read(log, held).entries())
    assert len(list(index.entries(COMMAND_KEY))) == 4  # of the archive, and what was accepted since


def test_nobody_reads_past_a_lost_record_without_its_salvage() -> None:
    """Goal: an index that forgets the tail is never made. Method: no salvage, another one, one for another offset."""
    tail = some_tail()
    found = tail.salvage()
    log = restored(tail, found)
    other = some_tail(published=6).salvage()
    for held in (NO_SALVAGES, Salvages([other])):
        index = MemoryIndex()
        applier = Applier(index, RESTORED, held)
        applier.apply(log[:4])
        with pytest.raises(SalvageMissing):
            applier.apply(log[4:5])
        assert applier.position.offset == 3
    assert NO_SALVAGES.entries_of([(4, b"notary"), (5, b"")]) == {}
    for value in (found.lost_record(5), found.lost_record(4)[:-1], found.lost_record(4) + b"x"):
        with pytest.raises(IndexMismatch):
            Salvages([found]).entries_of([(4, value)])
    for outside in (3, 10):
        with pytest.raises(IndexMismatch):
            Salvages([found]).entries_of([(outside, found.lost_record(outside))])


def test_a_salvage_that_contradicts_the_archive_is_refused() -> None:
    """Goal: a wrong salvage stops every replica, and spends nothing twice. Method: it names what the prefix decided,
    in the run of the prefix and in a later one."""
    tail = some_tail()
    header, entries = tail.merged()
    wrong = [entry(4, TX_KEY + tx(60), bytes(32)), entry(4, STATE_KEY + state(6), tx(60))]  # offset 3 spent state 6
    found = decode_salvage(encode_salvage(header, [*[e for e in entries if e.offset > 4], *wrong], SIGNER.sign))
    for run in (1, 4, 1_000):
        with pytest.raises(IndexMismatch):
            read(restored(tail, found), Salvages([found]), run)


def checked(index: MemoryIndex, log: Log, held: Salvages, run: int = 3) -> None:
    check = begin_check(RESTORED)
    for start in range(0, len(log), run):
        check = continue_check(index, check, log[start : start + run], held)
    check_complete(check, len(list(index.entries())))


def test_the_scrub_compares_salvaged_entries_as_well() -> None:
    """Goal: a forgotten, changed or made-up entry of the lost range is found. Method: check; break the index; check."""
    tail = some_tail()
    found = tail.salvage()
    held, log = Salvages([found]), restored(tail, found)
    checked(read(log, held), log, held)
    with pytest.raises(SalvageMissing):
        checked(read(log, held), log, NO_SALVAGES)
    spent, made_up = STATE_KEY + state(18), STATE_KEY + state(99)
    breaks: list[dict[bytes, bytes | None]] = [
        {spent: None},
        {spent: tx(1) + (9).to_bytes(8, "big")},
        {spent: tx(9) + (2).to_bytes(8, "big")},
        {made_up: tx(9) + (9).to_bytes(8, "big")},
        {spent: None, made_up: tx(9) + (9).to_bytes(8, "big")},  # as many entries as there should be
    ]
    for broken in breaks:
        index = read(log, held)
        for key, value in broken.items():
            index._entries.pop(key, None)
            if value is not None:
                index._entries[key] = value
        with pytest.raises(IndexMismatch):
            checked(index, log, held)


def test_completions_of_a_restored_log_go_on_from_the_published_position() -> None:
    """Goal: nothing is published twice or from another record. Method: the adopted position is a reader's own."""
    tail = some_tail()
    found = tail.salvage()
    log = restored(tail, found)
    position = position_in(tail_of("r1", tail.log[:8], 0).position, RESTORED, found)
    applied, _ = judge_records(MemoryIndex(), begin(RESTORED), log[:8], Salvages([found]))
    assert position == applied.position
    rest, _ = judge_records(MemoryIndex(), position, log[8:], Salvages([found]))
    assert completions_of(rest) == []
    assert position_in(position, RESTORED, found) == position  # adopted again


def test_a_published_position_that_the_salvage_does_not_tell_of_is_refused() -> None:
    """Goal: a database that moved since is not adopted. Method: published further, less far, of another topic."""
    tail = some_tail()
    found = tail.salvage()
    published = tail_of("r1", tail.log[:8], 0).position
    changes: list[dict[str, object]] = [{"offset": 8}, {"offset": 6}, {"offset": 2}, {"topic_id": "other"}]
    for change in changes:
        with pytest.raises(RestoreRefused):
            position_in(msgspec.structs.replace(published, **change), RESTORED, found)
    early = some_tail(published=2)
    assert position_in(tail_of("r1", tail.log[:3], 0).position, RESTORED, early.salvage()).offset == 2


# ---- who may serve ----


def test_a_replica_keeps_what_was_imported(tmp_path: Path) -> None:
    """Goal: the very file, after a restart as well. Method: keep, read; damage it; exchange it."""
    tail = some_tail()
    found, other = tail.salvage(), some_tail(published=6)
    assert read_salvages(tmp_path).held == {}
    path = keep_salvage(tmp_path, found, tail.raw())
    keep_salvage(tmp_path, found, tail.raw())
    assert set(read_salvages(tmp_path).held) == {found.digest}
    path.write_bytes(other.raw())
    with pytest.raises(SalvageDamaged, match="another salvage"):
        read_salvages(tmp_path)
    path.write_bytes(tail.raw()[:-1])
    with pytest.raises(SalvageDamaged):
        read_salvages(tmp_path)


def test_a_second_site_gets_the_salvages_too(tmp_path: Path) -> None:
    """Goal: an archive with lost records is worth something elsewhere. Method: copy; damage the first; copy again."""
    archive, _ = make_archive(tmp_path / "archive", some_log(12))
    tail = some_tail()
    kept = keep_salvage(archive.folder, tail.salvage(), tail.raw())
    copy_archive(archive, tmp_path / "site")
    assert set(read_salvages(tmp_path / "site").held) == {tail.salvage().digest}
    kept.write_bytes(some_tail(published=6).raw())
    with pytest.raises(ArchiveDamaged):
        copy_archive(archive, tmp_path / "site")
    kept.write_bytes(tail.raw()[:-1])
    with pytest.raises(SalvageDamaged):
        copy_archive(archive, tmp_path / "site")
    assert set(read_salvages(tmp_path / "site").held) == {tail.salvage().digest}


def test_only_an_index_with_the_salvage_serves() -> None:
    """Goal: a replica that was led past the range by a release without salvages stays down. Method: indexes that have
    all of it, that lack an entry, that are on their way, against a database that names it."""
    tail = some_tail()
    found = tail.salvage()
    held, log = Salvages([found]), restored(tail, found)
    database = MemoryDatabase()
    database.topic_id = bound_name(TOPIC, RESTORED, found.digest)

    def has(index: MemoryIndex, offset: int, salvages: Salvages = held) -> frozenset[str]:
        return asyncio.run(salvages_in(index, offset, salvages))

    whole = read(log, held)
    database.bind(RESTORED, has(whole, 9))
    database.bind(RESTORED, has(read(log[:6], held), 5))
    database.bind(RESTORED, has(MemoryIndex(), -1))
    del whole._entries[STATE_KEY + state(8)]
    for salvages in (has(whole, 9), has(read(log, held), 9, NO_SALVAGES)):
        with pytest.raises(SalvageMissing) as caught:
            database.bind(RESTORED, salvages)
        assert caught.value.code is Code.SALVAGE_MISSING
    with pytest.raises(StoreMismatch):
        database.bind(TOPIC, has(read(log, held), 9))


def test_a_salvage_that_was_found_is_not_looked_for_again() -> None:
    """Goal: an activation does not wait for millions of look-ups each time. Method: count them; one that is missing is
    looked for until it is there."""
    tail = some_tail()
    found = tail.salvage()
    held = Salvages([found])
    index = read(restored(tail, found), held)
    value = index._entries.pop(STATE_KEY + state(8))
    looks = SalvagesFound(index, held)
    assert asyncio.run(looks.found(9)) == frozenset()
    index._entries[STATE_KEY + state(8)] = value
    assert asyncio.run(looks.found(9)) == {found.digest.hex()}
    index.lookup = pytest.fail  # type: ignore[assignment]
    assert asyncio.run(looks.found(9)) == {found.digest.hex()}


def test_a_release_without_salvages_finds_another_log() -> None:
    """Goal: old replicas refuse. Method: what the database calls the log is no topic's id, and has both parts."""
    name = bound_name(TOPIC, RESTORED, b"d" * 32)
    assert name != RESTORED
    assert (bound_topic_id(name), salvages_named(name)) == (RESTORED, ((b"d" * 32).hex(),))
    assert bound_name(name, RESTORED, b"d" * 32) == name
    again = bound_name(name, "third", b"e" * 32)
    assert (bound_topic_id(again), len(salvages_named(again))) == ("third", 2)
    assert salvages_named(bound_name(again, "fourth")) == salvages_named(again)
    assert bound_topic_id(bound_name(None, "a+b/c", b"d" * 32)) == "a+b/c"  # Kafka's ids are base64
    for other in ("postgres:7b3c9d5e-0c1f-4a53-9d64-0f5d4f0c9b1a", "raft:a:b"):
        assert (bound_topic_id(other), salvages_named(other)) == (other, ())
        named = bound_name(name, other)
        assert (bound_topic_id(named), salvages_named(named)) == (other, salvages_named(name))
    assert (bound_topic_id(None), salvages_named(None), bound_name(None, RESTORED)) == (None, (), RESTORED)
    with pytest.raises(SalvageDamaged, match="lost ranges"):
        bound_name(bound_name(again, "x", b"f" * 32), "y", b"g" * 32)


# ---- the check ----


def test_the_check_judges_a_lost_range_by_its_salvage() -> None:
    """Goal: right completions are clean, and wrong ones found. Method: those of the lost tail and of what follows;
    then one of the tail differs."""
    tail = some_tail()
    found = tail.salvage()
    maker = LogMaker(values=[value for _, value in tail.log])
    log = restored(tail, found, suffix_of([request_of(50, (18,)), request_of(9, (18,), (19,))], maker))
    applied, _ = judge_records(MemoryIndex(), begin(RESTORED), log, Salvages([found]))
    told = list(enumerate(completions_in(tail.log, 0, tail.published), 1))
    told += [row for row in completions_of(applied) if row[1].log_offset > found.last]
    rows = [
        CompletionRow(at, *[getattr(one, name) for name in CompletionRow.__struct_fields__[1:]]) for at, one in told
    ]
    scope = Scope(complete=False)
    report = check([], log, completions=rows, scope=scope, salvages=Salvages([found]))
    assert (report.findings, report.summary.completions, report.summary.outcomes["LOST"]) == ([], len(rows), 6)
    assert report.summary.outcomes["STATE_CONFLICT"] == 1
    rows[3] = msgspec.structs.replace(rows[3], tx_id=tx(77))
    assert list(check([], log, completions=rows, scope=scope, salvages=Salvages([found])).counts) == [
        "COMPLETION_WRONG"
    ]
    with pytest.raises(SalvageMissing):
        check([], log, completions=rows, scope=scope)


def test_an_epoch_whose_barrier_was_lost_is_no_passive_s() -> None:
    """Goal: no false alarm after a salvage. Method: "not found", answered in an epoch between those in force before and
    after the lost range; then in one that was never granted."""
    tail = some_tail()
    found = tail.salvage()
    maker = LogMaker(values=[value for _, value in tail.log])
    maker.barrier(3)
    log = [*restored(tail, found), (found.last + 1, maker.values[-1])]

    def findings(epoch: int) -> list[str]:
        asked = Invoke("p", 1, 10, tx(77).hex())
        history: list[Event] = [asked, Refused("p", 1, 15, "TX_NOT_FOUND", epoch=epoch, replica="R2")]
        return list(check(history, log, scope=Scope(complete=False), salvages=Salvages([found])).counts)

    assert findings(2) == []
    assert findings(4) == ["PASSIVE_ANSWERED"]


@pytest.mark.parametrize("told", [True, False])
def test_a_command_of_the_lost_tail_is_still_used(told: bool) -> None:
    """Goal: no false alarm after a salvage. Method: the database remembers a command whose record was lost, answered
    to a client of this history or to somebody else; its id is used again, and refused. A command of nobody's is not."""
    tail = some_tail()
    found = tail.salvage()

    def sent(op: int, number: int, inputs: tuple[int, ...], command: str) -> Invoke:
        request = request_of(number, inputs)
        return invoke_submission("p", op, 10 * op, request, submission_of(request, command))

    first = sent(1, 4, (8, 9), "command-4")
    digest = content_digest(request_of(4, (8, 9))).hex()
    history: list[Event] = [first, Ok("p", 1, 15, digest, 4, record_offset=4)] if told else []
    history += [sent(2, 40, (40,), "command-4"), Refused("p", 2, 25, "COMMAND_ID_REUSED")]
    log, held = restored(tail, found), Salvages([found])
    scope = Scope(complete=told, first_offset=4 if told else 0)
    assert check(history, log, scope=scope, salvages=held).counts.get("REFUSED_WRONGLY", 0) == 0
    history += [sent(3, 41, (41,), "command-of-nobody"), Refused("p", 3, 35, "COMMAND_ID_REUSED")]
    wrong = check(history, log, scope=scope, salvages=held).counts.get("REFUSED_WRONGLY", 0)
    assert wrong == (1 if told else 0)


def test_requests_of_the_tail_are_those_of_the_story() -> None:
    """Goal: the scene is the one described. Method: what counts in it."""
    applied, _ = judge_records(MemoryIndex(), begin(TOPIC), some_tail().log)
    outcomes = [verdict.outcome for one, verdict in applied.decided() if isinstance(one, CountedRequest) and verdict]
    assert outcomes == [*[Outcome.NOTARISED] * 5, Outcome.CONFLICT, Outcome.NOTARISED]
    assert isinstance(some_tail().survivors().indexes[0], IndexTail)
