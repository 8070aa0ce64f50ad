"""A format and rules that only a later release knows: who stops, who may raise them, and what they change."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from replica.checker.check import Scope, check
from replica.checker.history import Ok, Refused, invoke_submission
from replica.checker.judge import JudgedRequest, JudgedVoid, ReferenceJudge
from replica.notary.canonical import content_digest
from replica.notary.errors import FormatUnknown
from replica.notary.formats import Formats, known, of_barrier, to_write, why_not_raise
from replica.notary.granters import Claim
from replica.notary.position import begin
from replica.notary.reading import VoidReason, read_records
from replica.notary.records import (
    RECORD_FORMATS,
    BarrierRecord,
    encode_record,
    format_named,
    request_record,
)
from tests.next_version.release import LOTS, NEXT, PRESENT, REFUSED_LOT, NextRequest, registered
from tests.worlds.notary_logs import (
    CLIENT_KEY,
    FOR_EVER,
    PARTY,
    TOPIC,
    LogMaker,
    request_of,
    run_product,
    submission_of,
)
from tests.worlds.party_logs import OFFICER_KEYS

TODAY = known()


@pytest.fixture
def next_release() -> Iterator[None]:
    """This process is of the next release."""
    with registered():
        yield


def write(maker: LogMaker, tx_number: int, *, lot: int | None, states: tuple[int, ...] = (), command: str = "") -> int:
    """A request of the next format, with this lot; without one it is of today's."""
    submission = submission_of(request_of(tx_number, states), command or f"c{len(maker.values)}")
    fields = (maker.activation_id, len(maker.values), 1_000, submission, FOR_EVER)
    if lot is None:
        return maker.raw(encode_record(request_record(PRESENT.records, *fields)))
    present = request_record(NEXT.records, *fields)
    return maker.raw(encode_record(NextRequest(*msgspec.structs.astuple(present), lot)))


def raised() -> LogMaker:
    """Notarised under today's rules, then the barrier of the next ones."""
    maker = LogMaker()
    maker.genesis(*OFFICER_KEYS[:1])
    maker.barrier(1)
    maker.register(PARTY, key=CLIENT_KEY, by=OFFICER_KEYS[0])
    write(maker, 1, lot=None, states=(1,))
    maker.barrier(2, format=NEXT.records)
    return maker


def judged(maker: LogMaker) -> list[str]:
    """By the product; the reference judge agrees about each record."""
    run = run_product(maker.log, cuts=list(range(len(maker.log))))  # one at a time: the fast way through the rules
    found = list(ReferenceJudge().judge(maker.log))
    by_reference = [one.outcome.lower() for one in found if isinstance(one, JudgedRequest)]
    by_product = [verdict.outcome.value for verdict in run.verdicts.values()]
    assert by_reference == [name.replace("conflict", "state_conflict") for name in by_product]
    assert run.voids == {one.offset: one.reason for one in found if isinstance(one, JudgedVoid)}
    return by_product


def test_a_reader_of_today_stops_at_the_barrier_of_the_next_version() -> None:
    """Goal: who does not know a rule judges nothing by it. Method: a log of the next release, read by today's."""
    maker = raised()
    write(maker, 2, lot=REFUSED_LOT)
    for read in (lambda: read_records(begin(TOPIC), maker.log), lambda: list(ReferenceJudge().judge(maker.log))):
        with pytest.raises(FormatUnknown):
            read()
    before = read_records(begin(TOPIC), maker.log[:-2])
    assert (len(before.counted), before.voids) == (3, [])
    with registered():
        position = read_records(begin(TOPIC), maker.log).position
    with pytest.raises(FormatUnknown):
        read_records(position, [])


@pytest.mark.parametrize("pair", [(NEXT.records, PRESENT.rules), (PRESENT.records, NEXT.rules)])
@pytest.mark.usefixtures("next_release")
def test_a_format_and_rules_that_do_not_go_together_stop_every_reader(pair: tuple[int, int]) -> None:
    """Goal: rules never judge records without their field. Method: each with the other version's."""
    maker = LogMaker(format=pair[0])
    maker.barrier(1, rules=pair[1])
    for read in (lambda: read_records(begin(TOPIC), maker.log), lambda: list(ReferenceJudge().judge(maker.log))):
        with pytest.raises(FormatUnknown):
            read()
    assert "do not go together" in str(why_not_raise(Formats(*pair), PRESENT, {"r1": known()}))


@pytest.mark.usefixtures("next_release")
def test_records_of_another_format_than_the_one_in_force_are_void() -> None:
    """Goal: a barrier alone brings a format into force, also for who knows it. Method: next before, today's after."""
    maker = LogMaker()
    maker.barrier(1)
    early = write(maker, 1, lot=1)
    assert format_named(maker.values[early]) == NEXT.records
    maker.barrier(2, format=NEXT.records)
    late = [write(maker, 2, lot=None), maker.act()]  # a note has the same fields in both, so the number alone tells
    assert judged(maker) == []
    assert run_product(maker.log).voids == dict.fromkeys((early, *late), VoidReason.UNDECODABLE.value)


@pytest.mark.usefixtures("next_release")
@pytest.mark.parametrize("last", [[], [1, 1], [LOTS]])
def test_the_added_field_has_its_place_and_its_bound(last: list[int]) -> None:
    """Goal: no element less, none more, none above its bound."""
    maker = raised()
    submission = submission_of(request_of(2), "c")
    present = request_record(NEXT.records, maker.activation_id, 0, 1, submission, FOR_EVER)
    offset = maker.raw(msgspec.msgpack.encode([1, *msgspec.structs.astuple(present), *last]))
    assert run_product(maker.log).voids == {offset: VoidReason.UNDECODABLE.value}


@pytest.mark.usefixtures("next_release")
def test_the_next_rules_judge_what_follows_their_barrier_and_nothing_before() -> None:
    """Goal: each record is judged by the rules of its barrier. Method: each outcome that a lot could change."""
    maker = raised()
    write(maker, 2, lot=1, states=(2,), command="c")
    write(maker, 3, lot=REFUSED_LOT, states=(3,))
    write(maker, 4, lot=1, states=(3,))  # what was refused consumed nothing
    write(maker, 5, lot=REFUSED_LOT, states=(1,))  # the states come before the lot
    write(maker, 1, lot=REFUSED_LOT, states=(1,))  # notarised before the raise: it stays so
    write(maker, 2, lot=REFUSED_LOT, states=(2,), command="c")
    write(maker, 6, lot=1, states=(1,))
    closed = "time_window_closed"
    assert judged(maker) == [
        "notarised",
        "notarised",
        closed,
        "notarised",
        "conflict",
        "notarised",
        "deduplicated",
        "conflict",
    ]


@pytest.mark.usefixtures("next_release")
def test_the_check_of_a_history_judges_by_the_next_rules() -> None:
    """Goal: `notary check` knows the rule from the log alone. Method: a refusal as it must be, and a success."""
    maker = raised()
    request = request_of(2, (2,))
    offset = write(maker, 2, lot=REFUSED_LOT, states=(2,), command="c")
    scope = Scope(first_offset=offset)
    sent = invoke_submission("p", 0, 1, request, submission_of(request, "c"))
    assert check([sent, Refused("p", 0, 2, "TIME_WINDOW_CLOSED", offset)], maker.log, scope=scope).findings == []
    assert check([sent, Ok("p", 0, 2, content_digest(request).hex(), offset, offset)], maker.log, scope=scope).findings


@pytest.mark.usefixtures("next_release")
def test_a_claim_under_the_next_rules_is_void_once_its_holder_wrote_again() -> None:
    """Goal: the lease is defended under later rules, too. Method: a claim that does not know the holder's newest."""
    maker = raised()
    of_next = (Claim(len(maker.values) - 1), NEXT.records, NEXT.rules)
    maker.raw(encode_record(BarrierRecord(3, maker.activation_id, "R3", *of_next)))
    write(maker, 2, lot=1)
    offset = maker.raw(encode_record(BarrierRecord(4, bytes(16), "R4", *of_next)))
    assert judged(maker) == ["notarised", "notarised"]
    assert run_product(maker.log).voids == {offset: VoidReason.HOLDER_WROTE.value}


def test_a_raise_waits_for_every_replica_to_know_the_next_version(next_release: None) -> None:
    """Goal: no replica is shut out. Method: one of today's release, one that is silent, then all of the next."""
    ready, old = known(), TODAY
    assert (ready.newest, old.newest) == (NEXT, PRESENT)
    why = why_not_raise(NEXT, PRESENT, {"r1": ready, "r2": old})
    assert why == "r2 could not read it any more: bring it to this release first"
    assert "it is not known what r2 can read" in str(why_not_raise(NEXT, PRESENT, {"r1": ready, "r2": None}))
    assert why_not_raise(NEXT, PRESENT, {"r1": ready, "r2": ready}) is None
    assert "nothing goes back" in str(why_not_raise(PRESENT, NEXT, {"r1": ready}))


def test_a_release_writes_the_next_version_once_it_was_raised_and_not_before() -> None:
    """Goal: a new release changes nothing by itself. Method: what each release's activation would write."""
    with registered():
        barrier = read_records(begin(TOPIC), raised().log).position.barrier
        assert of_barrier(barrier) == NEXT
        assert to_write(PRESENT, PRESENT) == PRESENT
        assert to_write(NEXT, PRESENT) == to_write(PRESENT, NEXT) == NEXT
    for raised_to, in_log in ((NEXT, PRESENT), (PRESENT, NEXT)):
        with pytest.raises(FormatUnknown):
            to_write(raised_to, in_log)


def test_nothing_of_the_next_version_is_left_in_a_process_of_today() -> None:
    """Goal: the tests above prove something. Method: what is known before, within and after."""
    with registered():
        assert NEXT.records in RECORD_FORMATS
    assert (known(), NEXT.records in RECORD_FORMATS) == (TODAY, False)
