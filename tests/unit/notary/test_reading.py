"""The void rule, record by record: barriers, activations, sequence numbers, formats, gaps."""

from __future__ import annotations

import msgspec
import pytest

from replica.notary.counted import CountedRequest
from replica.notary.errors import FormatUnknown, InvariantBroken
from replica.notary.granters import Database
from replica.notary.position import BEGIN, begin
from replica.notary.reading import VoidReason, read_records
from replica.notary.records import BarrierRecord, encode_record, record_digest
from tests.worlds.beginning import OTHER_LEDGER
from tests.worlds.notary_logs import TOPIC, LogMaker, activation, made, request_of, run_product

UNDECODABLE = VoidReason.UNDECODABLE.value
NOT_IN_FORCE = VoidReason.NOT_IN_FORCE.value
REPEAT = VoidReason.REPEAT.value
NOT_HIGHER = VoidReason.BARRIER_NOT_HIGHER.value


def test_nothing_counts_before_the_first_barrier() -> None:
    """Goal: no activation, no record. Method: a good record, then a barrier for it, then the record again."""
    maker = made(activation_id=activation(1))
    maker.submit(request_of(1, (1,)))
    maker.barrier(1)
    counted = maker.submit(request_of(1, (1,)))
    run = run_product(maker.log)
    assert run.voids == {1: UNDECODABLE}  # there is no format in force yet
    assert list(run.verdicts) == [counted]


def test_a_record_counts_only_with_the_activation_id_in_force() -> None:
    """Goal: a deposed active's late record is void. Method: a record of epoch 1 behind the barrier of epoch 2."""
    maker = made()
    maker.barrier(1)
    maker.submit(request_of(1, (1,)))
    maker.barrier(2)
    late = maker.submit(request_of(2, (1,)), activation_id=activation(1), sequence=1)
    good = maker.submit(request_of(3, (2,)))
    run = run_product(maker.log)
    assert run.voids == {late: NOT_IN_FORCE}
    assert list(run.verdicts) == [2, good]


@pytest.mark.parametrize("epoch", [3, 2, 1])
def test_a_barrier_that_is_not_higher_is_void_and_reading_goes_on(epoch: int) -> None:
    """Goal: the in-force barrier stays. Method: the same and lower epochs with another activation id."""
    maker = made()
    maker.barrier(3, 3)
    usurper = maker.barrier(epoch, 9)
    theirs = maker.submit(request_of(1, (1,)), activation_id=activation(9))
    ours = maker.submit(request_of(2, (1,)), activation_id=activation(3))
    run = run_product(maker.log)
    assert run.voids == {usurper: NOT_HIGHER, theirs: NOT_IN_FORCE}
    assert list(run.verdicts) == [ours]
    assert (run.position.epoch, run.position.barrier_offset) == (3, 1)


def test_a_barrier_is_measured_against_all_before_it_not_only_the_latest() -> None:
    """Goal: a void barrier lowers nothing. Method: epochs 5, 2 (void), 4 (void, though above 2)."""
    maker = made()
    maker.barrier(5)
    maker.barrier(2)
    maker.barrier(4)
    assert run_product(maker.log).voids == {2: NOT_HIGHER, 3: NOT_HIGHER}


def test_a_repeat_of_the_barrier_in_force_changes_nothing() -> None:
    """Goal: the log's client may send it twice. Method: repeat it behind a record, then repeat the record."""
    maker = made()
    maker.barrier(1)
    maker.submit(request_of(1, (1,)))
    maker.raw(maker.values[1])
    maker.raw(maker.values[2])
    run = run_product(maker.log)
    assert run.voids == {4: REPEAT}  # sequence numbers were not forgotten
    assert (len(run.barriers), run.position.barrier_offset) == (1, 1)


@pytest.mark.parametrize("cuts", [[], [1, 2, 3, 4, 5, 6]])
def test_a_barrier_in_force_is_known_with_its_place_and_time(cuts: list[int]) -> None:
    """Goal: when an activation began is the same for every reader. Method: barriers after stamps that fall, with a
    repeat between them, in one run and record by record."""
    maker = made()
    maker.barrier(1)
    maker.submit(request_of(1, (1,)), stamp_us=9_000)
    maker.submit(request_of(2, (2,)), stamp_us=7_000)
    maker.barrier(1)
    maker.barrier(3)
    found = [(one.record.epoch, one.offset, one.stamp_us) for one in run_product(maker.log, cuts).barriers]
    assert found == [(1, 1, 0), (3, 5, 9_000)]


def test_an_old_barrier_sent_again_late_is_void() -> None:
    """Goal: only the one in force may repeat. Method: barrier 1 again after barrier 2."""
    maker = made()
    maker.barrier(1)
    maker.barrier(2)
    maker.raw(maker.values[1])
    assert run_product(maker.log).voids == {3: NOT_HIGHER}


def test_only_the_first_counting_record_of_a_sequence_number_counts() -> None:
    """Goal: rule 9. Method: number 4 early, then 0, 1, 4 again with other content, 2, and 0 in the next activation."""
    maker = made()
    maker.barrier(1)
    for number in (4, 0, 1):
        maker.submit(request_of(number, (number,)), sequence=number)
    again = maker.submit(request_of(9, (5,)), sequence=4)
    maker.submit(request_of(2, (2,)), sequence=2)
    run = run_product(maker.log)
    assert run.voids == {again: REPEAT}
    assert run.position.seen == ((0, 3), (4, 5))
    maker.barrier(2)
    maker.submit(request_of(7, (4,)), sequence=0)
    assert run_product(maker.log).position.seen == ((0, 1),)


def test_an_undecodable_record_uses_up_no_sequence_number() -> None:
    """Goal: what does not count has no effect at all. Method: broken request bytes under number 0, then good ones."""
    maker = made()
    maker.barrier(1)
    maker.submit(request_of(1, (1,)), sequence=0)
    broken = maker.values[2].replace(b"notary/request/3", b"notary/request/2")
    maker.values[2:3] = [broken, maker.values[2]]
    run = run_product(maker.log)
    assert run.voids == {2: UNDECODABLE}
    assert list(run.verdicts) == [3]


def test_a_request_for_another_ledger_is_void_and_uses_up_no_sequence_number() -> None:
    """Goal: what was signed for one ledger means nothing in another. Method: it before and after a good request; a
    reader that starts behind the genesis."""
    maker = made()
    maker.barrier(1)
    other = maker.submit(request_of(1, (1,), ledger_id=OTHER_LEDGER), sequence=0, stamp_us=9_000)
    good = maker.submit(request_of(1, (1,)), sequence=0)
    again = maker.submit(request_of(1, (1,), ledger_id=OTHER_LEDGER), sequence=0)
    for cuts in ([], [1, 2, 3, 4]):
        run = run_product(maker.log, cuts)
        assert run.voids == {other: UNDECODABLE, again: UNDECODABLE}
        assert list(run.verdicts) == [good]
        assert run.position.stamp_us == 1_000


def test_without_a_genesis_no_request_counts() -> None:
    """Goal: no ledger, no request. Method: a log that begins with a barrier."""
    maker = LogMaker()
    maker.barrier(1)
    request = maker.submit(request_of(1))
    assert run_product(maker.log).voids == {request: UNDECODABLE}


def test_a_sign_of_life_counts_once_and_moves_no_time() -> None:
    """Goal: it shows that its writer lives, and nothing else. Method: a late stamp; the same record again."""
    maker = made()
    maker.barrier(1)
    maker.submit(request_of(1), stamp_us=77)
    at = maker.live(stamp_us=9_000)
    maker.raw(maker.values[at])
    run = run_product(maker.log)
    assert run.voids == {at + 1: REPEAT}
    assert (run.position.stamp_us, run.position.counted_offset, run.position.seen) == (77, at, ((0, 2),))
    assert list(run.counted) == [0, 2]


def test_a_record_in_another_format_than_the_one_in_force_is_void() -> None:
    """Goal: rule 8. Method: a format 3 record under a barrier of format 2."""
    maker = made()
    maker.barrier(1)
    maker.submit(request_of(1))
    fields = msgspec.msgpack.decode(maker.values[2])
    maker.raw(msgspec.msgpack.encode([fields[0], 3, *fields[2:]]))
    assert run_product(maker.log).voids == {3: UNDECODABLE}


@pytest.mark.parametrize(("format", "rules"), [(1, 1), (2, 1), (2, 2), (1, 3), (0, 3), (3, 3), (2, 4)])
def test_a_reader_that_does_not_know_what_is_in_force_stops(format: int, rules: int) -> None:
    """Goal: guessing would be wrong. Method: a higher barrier naming an unknown format or version of the rules."""
    maker = made()
    maker.barrier(1)
    maker.barrier(2, format=format, rules=rules)
    with pytest.raises(FormatUnknown):
        run_product(maker.log)


def test_a_void_barrier_of_an_unknown_format_stops_nobody() -> None:
    """Goal: only what comes into force matters. Method: a lower barrier naming an unknown format."""
    maker = made()
    maker.barrier(2)
    maker.barrier(1, format=7)
    assert run_product(maker.log).voids == {2: NOT_HIGHER}


@pytest.mark.parametrize("offset", [0, 1, 3, 6])
def test_a_gap_or_a_step_back_is_refused(offset: int) -> None:
    """Goal: offsets are dense. Method: the record behind offset 1 comes as 0, 1, 3 or 6."""
    maker = made()
    maker.barrier(1)
    position = read_records(begin(TOPIC), maker.log).position
    with pytest.raises(InvariantBroken):
        read_records(position, [(offset, maker.values[1])])


def test_the_position_behind_a_run_is_whole() -> None:
    """Goal: rule 6. Method: every field after a run, and no change after an empty one."""
    maker = made()
    maker.barrier(3)
    maker.submit(request_of(1), stamp_us=9)
    maker.raw(b"junk")
    reading = read_records(begin(TOPIC), maker.log)
    position = reading.position
    assert isinstance(reading.counted[1], CountedRequest)
    assert position.topic_id == TOPIC
    assert (position.offset, position.digest) == (3, record_digest(b"junk"))
    assert position.barrier == BarrierRecord(3, activation(3), "R3", Database("postgres", "1", 1), 2, 3)
    assert (position.barrier_offset, position.stamp_us, position.seen) == (1, 9, ((0, 1),))
    assert read_records(position, []).position == position
    assert begin(TOPIC).offset == BEGIN
    assert begin(TOPIC).epoch == 0


def test_a_highest_sequence_number_and_stamp_still_fit_a_position() -> None:
    """Goal: no record that counts can stop its readers. Method: the largest values that decode."""
    maker = made()
    maker.barrier(2**63 - 1, 1)
    maker.submit(request_of(1), sequence=2**63 - 1, stamp_us=2**63 - 1)
    maker.raw(encode_record(BarrierRecord(2**63, activation(2), "R", Database("postgres", "1", 1), 2, 3)))
    run = run_product(maker.log)  # encodes and decodes the position
    assert run.voids == {3: UNDECODABLE}
    assert run.position.seen == ((2**63 - 1, 2**63),)
    assert run.position.stamp_us == 2**63 - 1
