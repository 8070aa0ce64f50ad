"""What a mark and the log together mean: the whole table."""

from __future__ import annotations

from itertools import product

import pytest

from replica.marks.judging import Claim, Found, Meaning, Origin, Witness, contradiction, meaning
from replica.notary.errors import LogTruncated
from tests.worlds.marks_world import LOG_ID, mark

MARK = mark(5)
OURS = (Origin.OWN, Origin.LEFT, Origin.PUBLISHED, Origin.ARCHIVED)


def found(
    end: int = 6, digest: bytes | None = MARK.digest, *, lost: bool = False, barrier: bool = True, log_id: str = LOG_ID
) -> Found:
    return Found(log_id, end, digest, lost, barrier)


@pytest.mark.parametrize("origin", Origin)
def test_the_same_record_at_the_offset_holds(origin: Origin) -> None:
    for end, barrier in product((6, 100), (True, False)):
        assert meaning(Claim(MARK, origin), found(end, barrier=barrier)) is Meaning.HOLDS


@pytest.mark.parametrize("origin", Origin)
def test_another_log_says_nothing(origin: Origin) -> None:
    assert meaning(Claim(MARK, origin), found(0, None, log_id="another")) is Meaning.OTHER_LOG


@pytest.mark.parametrize("origin", Origin)
@pytest.mark.parametrize("end", [0, 5])
def test_a_log_that_ends_before_the_mark_contradicts_it(origin: Origin, end: int) -> None:
    assert meaning(Claim(MARK, origin), found(end, None)) is Meaning.ENDS_BEFORE


@pytest.mark.parametrize("origin", Origin)
def test_a_log_that_grew_again_contradicts_it(origin: Origin) -> None:
    """Lengths prove nothing: it ends after the mark."""
    assert meaning(Claim(MARK, origin), found(1_000, b"\x01" * 32)) is Meaning.ANOTHER_RECORD


@pytest.mark.parametrize("origin", OURS)
def test_the_marks_of_this_replica_need_no_barrier(origin: Origin) -> None:
    assert meaning(Claim(MARK, origin), found(0, None, barrier=False)) is Meaning.ENDS_BEFORE
    assert meaning(Claim(MARK, origin), found(9, b"", barrier=False)) is Meaning.ANOTHER_RECORD


def test_a_peer_whose_barrier_is_not_in_the_log_is_foreign() -> None:
    claim = Claim(MARK, Origin.PEER, "R2")
    assert meaning(claim, found(0, None, barrier=False)) is Meaning.FOREIGN
    assert meaning(claim, found(9, b"", barrier=False)) is Meaning.FOREIGN


@pytest.mark.parametrize("origin", Origin)
def test_a_lost_record_of_a_salvage_stands_for_the_mark(origin: Origin) -> None:
    assert meaning(Claim(MARK, origin), found(9, b"\x01" * 32, lost=True)) is Meaning.HOLDS


def regrown(words_to: int = -1, *, end: int = 9) -> Found:
    """A log with another record at the mark's offset, and the mark's barrier."""
    return Found(LOG_ID, end, b"\x01" * 32 if end > MARK.offset else None, False, True, words_to)


def test_a_peer_that_told_a_position_the_log_has_refutes_itself() -> None:
    claim = Claim(MARK, Origin.PEER, "R2", Witness((mark(7),), told=7))
    assert meaning(claim, regrown(words_to=7)) is Meaning.REFUTED
    assert meaning(claim, regrown(words_to=5)) is Meaning.REFUTED
    assert meaning(claim, regrown(words_to=4)) is Meaning.ANOTHER_RECORD  # it may have read more before the cut


@pytest.mark.parametrize(
    ("told", "read_to", "meant"),
    [
        (4, 5, Meaning.REFUTED),  # read here after the peer had not, with one reader
        (4, 8, Meaning.REFUTED),
        (4, 4, Meaning.ANOTHER_RECORD),  # not read here by then: perhaps only after the cut
        (5, 8, Meaning.ANOTHER_RECORD),  # the peer had read it already, perhaps before the cut
        (-1, -1, Meaning.ANOTHER_RECORD),  # the peer was never heard
    ],
)
def test_a_position_that_was_read_here_while_the_peer_was_behind(told: int, read_to: int, meant: Meaning) -> None:
    claim = Claim(MARK, Origin.PEER, "R2", Witness((), told, read_to))
    assert meaning(claim, regrown()) is meant


def test_nothing_refutes_that_a_log_ends_before_a_mark() -> None:
    claim = Claim(MARK, Origin.PEER, "R2", Witness((mark(7),), 4, 8))
    assert meaning(claim, regrown(words_to=7, end=5)) is Meaning.ENDS_BEFORE


def test_nothing_refutes_a_mark_of_this_replica() -> None:
    for origin in OURS:
        assert meaning(Claim(MARK, origin, "", Witness((mark(7),), 4, 8)), regrown(7)) is Meaning.ANOTHER_RECORD


def test_the_error_names_who_says_it_and_where_the_log_ends() -> None:
    error = contradiction(Claim(MARK, Origin.PEER, "R2"), found(3, None), Meaning.ENDS_BEFORE)
    assert isinstance(error, LogTruncated)
    assert "R2" in error.detail
    assert "it ends at 3" in error.detail
    another = contradiction(Claim(MARK, Origin.OWN), found(9, b""), Meaning.ANOTHER_RECORD)
    assert another.code.name == "LOG_MISMATCH"
    assert "this replica's seen file" in another.detail
