"""The pure parts of a worker: its numbers, its own records, its clock, its ledger offsets, its fitness."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from replica.active.clock_agreement import AGE_MAX_S, ClockSeen, booted_us, why_not_stamp
from replica.active.fitness import LOOK_S, PATIENCE_LOOKS, REST_LOOKS, Limits, Step, Unfit, Watch, WorkerFacts
from replica.active.numbers import (
    FEW_LEFT,
    NUMBERS_PER_RANGE,
    RANGES_MAX,
    SEEN_RANGES_MAX,
    Numbers,
    is_fragmented,
    needs_range,
    range_of,
    usable,
    writable,
)
from replica.active.own_records import VOIDED_MAX, OwnRecords, split_by_patience
from replica.active.terms import Terms
from replica.active.waiting import Waiting
from replica.following.apply import Applied, judge_records
from replica.index.memory import MemoryIndex
from replica.link.interface import DEFAULT_OPTIONS, Replies
from replica.notary.canonical import change_id, summarise
from replica.notary.errors import InvariantBroken
from replica.notary.granters import Claim, Database, Granter, Release
from replica.notary.parties import registration_id
from replica.notary.position import POSITION_VERSION, Position, begin
from replica.notary.records import ActRecord, BarrierRecord, Record, encode_record
from replica.notary.requests import Submission
from replica.notary.rules import Outcome
from replica.store.interface import Command
from tests.next_version.release import PRESENT
from tests.worlds.beginning import LEDGER
from tests.worlds.core_world import KEY, PARTY, state, submission
from tests.worlds.notary_logs import IN_FORCE

ON_71 = Database("postgres", "71", 1)
DATABASE = str(ON_71)
FIRST = NUMBERS_PER_RANGE  # of the first range that is drawn
PROMOTED = Database("postgres", "71", 2)


def barrier(epoch: int, granter: Granter = ON_71) -> BarrierRecord:
    return BarrierRecord(epoch, bytes([epoch]) * 16, "R1", granter, PRESENT.records, PRESENT.rules)


class Log:
    """A log that one worker reads as it grows. Its index has the key of each submission from the beginning."""

    def __init__(self, *first: Record) -> None:
        self.index = MemoryIndex()
        self.position = msgspec.structs.replace(begin("topic"), ledger_id=LEDGER)
        self.index.write({registration_id(PARTY, KEY) + bytes(8): IN_FORCE}, self.position)
        self.read(*[encode_record(record) for record in first])

    def read(self, *values: bytes) -> Applied:
        start = self.position.offset + 1
        applied, added = judge_records(self.index, self.position, list(enumerate(values, start)))
        self.index.write(added, applied.position)
        self.position = applied.position
        return applied


def waiting(one: Submission) -> Waiting:
    tx_id, digest, states = summarise(one.request)
    change = change_id(one.user_id, one.command_id, one.act_as)
    command = Command(change, one.user_id, one.command_id, one.act_as, one.submission_id, tx_id, digest, 1)
    return Waiting(cast(Replies, None), 1, one, command, states, DEFAULT_OPTIONS, terms=Terms(1_000_000))


def made(own: OwnRecords, who: Waiting, under: BarrierRecord, number: int, stamp_us: int) -> bytes:
    (value,) = own.make([who], under, number, stamp_us).values
    return value


# ---- numbers ----


def test_ranges_never_meet_one_another_nor_that_of_the_holder() -> None:
    """Goal: no number is of two. Method: neighbouring draws, the first and the last; the holder's begins with 0."""
    first, second, last = range_of(1, DATABASE), range_of(2, DATABASE), range_of(RANGES_MAX, DATABASE)
    assert first.start == NUMBERS_PER_RANGE
    assert first.end == second.start
    assert last.end <= 2**63  # the format's highest number is 2^63 - 1
    for drawn in (0, RANGES_MAX + 1):
        with pytest.raises(InvariantBroken):
            range_of(drawn, DATABASE)


def test_a_number_is_given_once_and_a_range_ends() -> None:
    """Goal: a range that is used up gives nothing. Method: a range of two numbers."""
    numbers = Numbers(msgspec.structs.replace(range_of(1, DATABASE), end=NUMBERS_PER_RANGE + 2))
    numbers.use(2)
    assert (numbers.next, numbers.left) == (NUMBERS_PER_RANGE + 2, 0)
    assert not usable(numbers, barrier(1), ())
    with pytest.raises(InvariantBroken):
        numbers.use(1)


def test_a_range_is_used_only_under_activations_of_the_database_that_gave_it() -> None:
    """Goal: a promoted standby may give a range away again, and the two never meet. Method: barriers of one database,
    of its next timeline, and of another holder on the same."""
    numbers = Numbers(range_of(7, DATABASE))
    assert usable(numbers, barrier(1), ())
    assert usable(numbers, barrier(2), ())
    assert not usable(numbers, barrier(3, PROMOTED), ())
    assert needs_range(numbers, barrier(3, PROMOTED), ())
    assert not needs_range(numbers, barrier(2), ())
    assert needs_range(None, barrier(1), ())
    short = Numbers(msgspec.structs.replace(range_of(7, DATABASE), start=8 * NUMBERS_PER_RANGE - FEW_LEFT + 1))
    assert usable(short, barrier(1), ())
    assert needs_range(short, barrier(1), ())


def test_workers_write_and_never_after_a_release() -> None:
    """Goal: no worker writes where only the holder may, or nobody. Method: each kind of barrier."""

    def position(in_force: BarrierRecord | None) -> Position:
        return Position(POSITION_VERSION, LEDGER, "topic", 5, b"", in_force)

    assert writable(None) is None
    assert writable(position(None)) is None
    assert writable(position(barrier(1, Release("R1")))) is None
    assert writable(position(barrier(1, Claim(4)))) is not None  # whether it may number is another matter
    assert writable(position(barrier(1))) == barrier(1)


def test_holes_ask_for_a_new_activation() -> None:
    """Goal: positions stay small. Method: at the bound, and above it."""
    ranges = tuple((2 * at, 2 * at + 1) for at in range(SEEN_RANGES_MAX + 1))
    position = Position(POSITION_VERSION, LEDGER, "topic", 5, b"", barrier(1), 0, 0, ranges)
    assert is_fragmented(position)
    assert not is_fragmented(msgspec.structs.replace(position, seen=ranges[1:]))


# ---- own records ----


def test_each_worker_is_answered_by_its_own_records() -> None:
    """Goal: all workers apply all, and each settles its own. Method: two workers log in turns, both read the run."""
    log = Log(barrier(1))
    one, other = OwnRecords(), OwnRecords()
    mine, others = waiting(submission(1, [state(9)])), waiting(submission(2, [state(9)], command_id="b"))
    run = [made(one, mine, barrier(1), FIRST, 10), made(other, others, barrier(1), 2 * FIRST, 11)]
    applied = log.read(*run)
    read = one.take(applied)
    assert [(who, verdict.outcome) for who, _, verdict in read.decided] == [(mine, Outcome.NOTARISED)]
    assert not read.again
    assert not one.sent
    read = other.take(applied)
    assert [(who, verdict.outcome) for who, _, verdict in read.decided] == [(others, Outcome.CONFLICT)]


def test_a_copy_of_our_record_settles_it_once() -> None:
    """Goal: what the log's client stores twice is answered once, and not logged anew. Method: two copies in one run."""
    log, own = Log(barrier(1)), OwnRecords()
    value = made(own, waiting(submission(1, [state(9)])), barrier(1), FIRST, 10)
    read = own.take(log.read(value, value))
    assert (len(read.decided), read.again) == (1, [])
    assert own.take(log.read(value)).decided == []


def test_a_record_is_logged_anew_only_once_a_barrier_made_it_void() -> None:
    """Goal: nothing counts twice. Method: two of three records lie behind a new barrier; the first counted before it.
    Until the barrier is read nothing is logged anew, however long it takes."""
    log, own = Log(barrier(1)), OwnRecords()
    sent = [waiting(submission(n, [state(n)])) for n in (1, 2, 3)]
    values = [made(own, each, barrier(1), FIRST + at, 10) for at, each in enumerate(sent)]
    stranger = waiting(submission(9, [state(5)]))
    assert own.take(log.read(made(OwnRecords(), stranger, barrier(1), 2 * FIRST, 10))).again == []
    read = own.take(log.read(values[0], encode_record(barrier(2)), values[1]))
    assert [who for who, _, _ in read.decided] == sent[:1]
    assert read.again == sent[1:]
    assert not own.sent
    values += [made(own, again, barrier(2), FIRST + at, 11) for at, again in enumerate(read.again, 3)]
    read = own.take(log.read(*values))  # the late copies as well
    assert [who for who, _, _ in read.decided] == sent[1:]
    assert [verdict.outcome for _, _, verdict in read.decided] == [Outcome.NOTARISED] * 2


def test_a_repeated_or_lower_barrier_makes_nothing_void() -> None:
    """Goal: only a change of the activation in force counts. Method: the barrier in force again, and an older one."""
    log, own = Log(barrier(1), barrier(2)), OwnRecords()
    value = made(own, waiting(submission(1, [state(1)])), barrier(2), FIRST, 10)
    assert own.take(log.read(encode_record(barrier(2)), encode_record(barrier(1)))).again == []
    assert len(own.take(log.read(value)).decided) == 1


def test_a_submission_is_not_logged_anew_for_ever() -> None:
    """Goal: a bound. Method: the same submission at the bound, and below it."""
    one, other = waiting(submission(1, [state(1)])), waiting(submission(2, [state(2)]))
    one.voided, other.voided = VOIDED_MAX - 1, VOIDED_MAX
    assert split_by_patience([one, other]) == ([one], [other])


@pytest.mark.parametrize(
    "change",
    [
        {"stamp_us": 99},
        {"submission_id": "x"},
        {"request": submission(2, [state(9)]).request},
    ],
)
def test_a_number_that_met_anothers_answers_nobody(change: dict[str, object]) -> None:
    """Goal: where ranges meet, the process ends and answers nobody. Method: a record with our number that differs in
    one element counts; ours is then a repeat."""
    log, own = Log(barrier(1)), OwnRecords()
    mine = waiting(submission(1, [state(9)]))
    value = made(own, mine, barrier(1), FIRST, 10)
    ((_, record),) = own.sent.values()
    foreign = encode_record(msgspec.structs.replace(record, **change))
    with pytest.raises(InvariantBroken, match="numbers were given twice"):
        own.take(log.read(foreign, value))
    assert [each for each, _ in own.sent.values()] == [mine]  # answered as unknown, when the process ends


def test_a_number_of_another_activation_is_not_ours() -> None:
    """Goal: each activation has the holder's numbers anew; the newer one's record neither answers who waits for the
    older one's nor ends the process. Method: the same number under two barriers."""
    log, own, successors = Log(barrier(1)), OwnRecords(), OwnRecords()
    mine, others = waiting(submission(1, [state(9)])), waiting(submission(2, [state(8)]))
    made(own, mine, barrier(1), 0, 10)
    run = log.read(encode_record(barrier(2)), made(successors, others, barrier(2), 0, 11))
    assert (own.take(run).again, own.sent) == ([mine], {})
    assert [who for who, _, _ in successors.take(run).decided] == [others]


def test_a_note_with_our_number_ends_the_process() -> None:
    """Goal: the holder's numbers are no worker's. Method: an act has one of ours."""
    log, own = Log(barrier(1)), OwnRecords()
    made(own, waiting(submission(1, [state(9)])), barrier(1), FIRST, 10)
    act = (10, "pause", 0, b"", "operator", "reason", b"k" * 32, b"s" * 64)
    with pytest.raises(InvariantBroken):
        own.take(log.read(encode_record(ActRecord(2, barrier(1).activation_id, NUMBERS_PER_RANGE, *act))))


def test_a_request_that_no_reader_can_read_is_settled_and_not_logged_anew() -> None:
    """Goal: one caller's bad bytes end with its answer. Method: a request without a meaning, between two good ones."""
    log, own = Log(barrier(1)), OwnRecords()
    good, bad = waiting(submission(1, [state(1)])), waiting(submission(2, [state(2)]))
    bad.submission = msgspec.structs.replace(bad.submission, request=b"NOTARY" + bad.submission.request[6:])
    read = own.take(log.read(*[made(own, each, barrier(1), FIRST + at, 10) for at, each in enumerate((good, bad))]))
    assert ([who for who, _, _ in read.decided], read.unreadable, read.again) == ([good], [(2, bad)], [])


# ---- clock ----


def test_a_worker_stamps_while_its_clock_agrees_and_has_not_jumped() -> None:
    """Goal: one fast clock closes nobody's windows. Method: each reason alone, at its bound and past it."""
    wall_us, boot_s = 1_000_000_000_000, 500.0
    seen = ClockSeen(0.9, boot_s, booted_us(wall_us, boot_s))

    def why(seen: ClockSeen | None, ahead_us: int = 0, later_s: float = 1.0) -> str | None:
        return why_not_stamp(seen, wall_us + round(later_s * 1e6) + ahead_us, boot_s + later_s, 1.0)

    assert why(seen) is None
    assert why(None) is not None
    assert "+1.100" in str(why(msgspec.structs.replace(seen, skew_s=1.1)))
    assert "-1.100" in str(why(msgspec.structs.replace(seen, skew_s=-1.1)))
    assert why(seen, ahead_us=1_400_000) is None
    assert "jumped" in str(why(seen, ahead_us=1_600_000))
    assert "jumped" in str(why(seen, ahead_us=-1_600_000))
    assert why(seen, later_s=AGE_MAX_S) is None  # the database is away: service goes on
    assert why(seen, later_s=AGE_MAX_S + 1) is not None


# ---- fitness ----

FIT = WorkerFacts(
    reaches_log=True,
    marks_hold=True,
    lag_records=10,
    is_paused=False,
    is_writable=True,
    may_number=True,
    why_not_stamp=None,
    is_serving=True,
    oldest_unread=7,
    has_failed=False,
    is_signed=True,
)
LIMITS = Limits(lag_records_max=10, unread_max_s=0.5)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"reaches_log": False}, Unfit.LOG_SILENT),
        ({"marks_hold": False}, Unfit.MARKS),
        ({"lag_records": 11}, Unfit.LAGGING),
        ({"is_paused": True, "is_writable": False}, Unfit.PAUSED),
        ({"is_writable": False}, Unfit.NO_ACTIVATION),
        ({"may_number": False}, Unfit.NO_NUMBERS),
        ({"why_not_stamp": "the wall clock jumped"}, Unfit.CLOCK),
        ({"has_failed": True}, Unfit.STALLED),
        ({"is_signed": False}, Unfit.SIGNER),
    ],
)
def test_each_fault_alone_takes_a_worker_out_of_service(change: dict[str, object], reason: Unfit) -> None:
    """Goal: health is what a worker does, not who holds the lock. Method: a fit worker, and one fault at a time."""
    assert Watch().looked(FIT, LIMITS).unfit is None
    found = Watch().looked(msgspec.structs.replace(FIT, **change), LIMITS).unfit
    assert found is not None
    assert found[0] is reason


def steps(watch: Watch, looks: int, **change: object) -> tuple[Watch, list[Step]]:
    """What a worker does in so many looks at the same facts."""
    facts, done = msgspec.structs.replace(FIT, **change), []
    for _ in range(looks):
        watch = watch.looked(facts, LIMITS)
        done.append(watch.step(facts))
    return watch, done


def test_a_record_that_is_not_read_back_is_borne_for_a_while() -> None:
    """Goal: a writer that reaches nobody is noticed, a slow one is not. Method: the same oldest record for as long as
    the bound; another one, or none, begins anew."""
    looks = round(LIMITS.unread_max_s / LOOK_S)
    watch, _ = steps(Watch(), looks)
    assert watch.unfit is None
    for other in (8, None):
        assert steps(watch, 1, oldest_unread=other)[0].unread_looks == 0
    watch, _ = steps(watch, 1)
    assert watch.unfit is not None
    assert watch.unfit[0] is Unfit.STALLED


def test_a_worker_ends_late_for_what_may_pass_and_at_once_for_what_may_not() -> None:
    """Goal: a lost moment costs no service, a pause takes effect. Method: each, look by look; a moment that passes."""
    lost = {"reaches_log": False}
    watch, done = steps(Watch(), PATIENCE_LOOKS - 1, **lost)
    assert set(done) == {Step.GO_ON}
    assert steps(watch, 1, **lost)[1] == [Step.END]
    watch, _ = steps(watch, 1)
    assert steps(watch, 1, **lost)[1] == [Step.GO_ON]
    assert steps(Watch(), 1, is_paused=True)[1] == [Step.END]
    assert steps(Watch(), 1, is_signed=False)[1] == [Step.END]


def test_a_worker_rests_before_it_serves_again() -> None:
    """Goal: one that is ill does not begin and end all the time. Method: the looks after it ended; with a key that
    gives no signature, with another reason, and fit."""
    idle = {"is_serving": False, "oldest_unread": None}
    _, done = steps(Watch().rested(), REST_LOOKS, **idle)
    assert done == [Step.WAIT] * (REST_LOOKS - 1) + [Step.BEGIN]
    assert steps(Watch(), 1, **idle, is_signed=False)[1] == [Step.TRY_KEY]
    assert steps(Watch(), 1, **idle, reaches_log=False)[1] == [Step.WAIT]
