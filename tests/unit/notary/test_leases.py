"""Claims to a lease over the log: the first one counts, and none counts that came too late."""

from __future__ import annotations

import pytest

from replica.notary.granters import Release
from replica.notary.leases import OTHERS_FROM, SIGNS_OF_LIFE_FROM
from replica.notary.reading import VoidReason
from tests.worlds.notary_logs import LogMaker, activation, made, request_of, run_product

HOLDER_WROTE = VoidReason.HOLDER_WROTE.value
NOT_HIGHER = VoidReason.BARRIER_NOT_HIGHER.value
NOT_IN_FORCE = VoidReason.NOT_IN_FORCE.value


def held() -> LogMaker:
    """A log whose lease R1 holds; its newest record that counts is at offset 2."""
    maker = made()
    maker.claim(1, -1)
    maker.live()
    return maker


def test_a_claim_that_witnessed_everything_deposes_the_holder() -> None:
    """Goal: a silent holder is replaced. Method: the claim names its newest record; a late record of it."""
    maker = held()
    maker.claim(2, 2)
    late = maker.live()  # of the new holder
    maker.submit(request_of(1, (1,)), activation_id=activation(1), sequence=9)
    run = run_product(maker.log)
    assert run.voids == {late + 1: NOT_IN_FORCE}
    assert run.position.epoch == 2


@pytest.mark.parametrize("sign", ["sign of life", "request", "note"])
def test_a_claim_is_void_if_the_holder_wrote_after_what_the_claimant_read(sign: str) -> None:
    """Goal: a holder that lives keeps the lease. Method: each kind of record that counts comes in between."""
    maker = held()
    {"sign of life": maker.live, "request": lambda: maker.submit(request_of(1, (1,))), "note": maker.act}[sign]()
    claim = maker.claim(2, 2, wins=False)
    after = maker.submit(request_of(2, (2,)))
    run = run_product(maker.log)
    assert run.voids == {claim: HOLDER_WROTE}
    assert (run.position.epoch, after in run.verdicts) == (1, True)


def test_what_does_not_count_is_no_sign_of_life() -> None:
    """Goal: nobody but the holder keeps the lease. Method: a repeat, a stranger, the barrier again, rubbish."""
    maker = held()
    maker.raw(maker.values[2])
    maker.submit(request_of(1, (1,)), activation_id=activation(7))
    maker.raw(maker.values[1])
    maker.raw(b"")
    maker.claim(2, 2)
    assert run_product(maker.log).position.epoch == 2


@pytest.mark.parametrize("sequence", [OTHERS_FROM, 17 * OTHERS_FROM + 3, SIGNS_OF_LIFE_FROM - 1])
def test_what_other_replicas_write_is_no_sign_of_life_of_the_holder(sequence: int) -> None:
    """Goal: a dead holder is replaced while others serve. Method: a record that counts, by its number another's, comes
    after what the claim witnessed."""
    maker = held()
    others = maker.submit(request_of(1, (1,)), sequence=sequence)
    maker.claim(2, 2)
    run = run_product(maker.log)
    assert (run.voids, run.position.epoch, others in run.verdicts) == ({}, 2, True)


@pytest.mark.parametrize("sequence", [OTHERS_FROM - 1, SIGNS_OF_LIFE_FROM, SIGNS_OF_LIFE_FROM + 9])
def test_the_holder_lives_in_its_own_numbers_among_records_of_others(sequence: int) -> None:
    """Goal: nobody takes the lease from a holder that lives. Method: one record of its own between those of others."""
    maker = held()
    for number in (OTHERS_FROM, sequence, OTHERS_FROM + 1):
        maker.submit(request_of(number % 100, ()), sequence=number)
    claim = maker.claim(2, 2, wins=False)
    assert run_product(maker.log).voids == {claim: HOLDER_WROTE}
    maker.claim(3, 4)
    assert run_product(maker.log).position.epoch == 3


def test_of_two_equal_claims_the_first_wins() -> None:
    """Goal: order decides, as in the mediator's lease. Method: two claimants that witnessed the same."""
    maker = held()
    maker.claim(2, 2)
    second = maker.raw(maker.values[3].replace(b"R2", b"R3").replace(activation(2), activation(3)))
    run = run_product(maker.log)
    assert (run.voids, run.barriers[-1].record.replica) == ({second: NOT_HIGHER}, "R2")


def test_a_claim_that_saw_the_first_claim_only_is_void_once_its_holder_wrote() -> None:
    """Goal: claims are compared with the holder in force. Method: a higher epoch, the witness of the holder before."""
    maker = held()
    maker.claim(2, 2)
    claim = maker.claim(3, 2, wins=False)
    assert run_product(maker.log).voids == {claim: HOLDER_WROTE}  # the barrier of the new holder is its first record


def test_the_first_claim_of_an_empty_log_needs_no_witness() -> None:
    """Goal: a participant begins. Method: a claim that witnessed nothing, as the first record."""
    assert run_product(held().log).position.epoch == 1


def test_a_release_frees_the_lease_and_is_not_judged_as_a_claim() -> None:
    """Goal: a holder hands over at once. Method: its late record is void; the next claim names the release."""
    maker = held()
    release = maker.claim(2, Release("R1"))
    maker.submit(request_of(1, (1,)), activation_id=activation(1), sequence=9)
    maker.claim(3, release)
    run = run_product(maker.log)
    assert (run.voids, run.position.epoch) == ({4: NOT_IN_FORCE}, 3)


def test_a_late_claim_is_void_whatever_formats_it_names() -> None:
    """Goal: no reader stops for a record without effect. Method: a late claim of a format that is not known."""
    maker = held()
    claim = maker.claim(2, 1, format=3, wins=False)
    assert run_product(maker.log).voids == {claim: HOLDER_WROTE}
