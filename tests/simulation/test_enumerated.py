"""Each message and each write of a short story is lost, delayed or repeated, one by one and two by two."""

from __future__ import annotations

import os

import pytest

from tests.simulation.enumerated import STORIES, Counted, enumerate_story, line_of, run, singles
from tests.simulation.mutants import MUTANTS

QUICK = ("submission", "registration", "fail-over", "switchover")  # the others take minutes
WAYS = {
    "statement_lost",
    "answer_lost",
    "statement_late",
    "answer_late",
    "append_lost",
    "append_late",
    "append_repeated",
    "append_reordered",
    "queue_full",
    "question_lost",
    "question_late",
    "read_lost",
    "read_late",
    "request_lost",
    "request_late",
    "request_repeated",
    "reply_lost",
    "reply_late",
    "index_read_failed",
    "index_write_failed",
    "index_write_torn",
}


def enumerated(name: str, *, pairs: bool = False) -> Counted:
    """All runs of a story, none of which broke a promise; their number is printed."""
    *_, counted = enumerate_story(name, pairs=pairs, workers=os.cpu_count() or 1)
    print(line_of(name, counted, "all pairs and singles" if pairs else "all singles"))
    assert not counted.broken
    return counted


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "submission",
        "registration",
        pytest.param("fail-over", marks=pytest.mark.thorough),
        pytest.param("switchover", marks=pytest.mark.thorough),
    ],
)
def test_whatever_goes_wrong_once_breaks_no_promise(name: str) -> None:
    """Goal: no single loss, delay or repetition is untried. Method: all of them along a story; the checker's verdict on
    each run. As many runs as there are ways to go wrong, and each kind of them along a submission."""
    counted = enumerated(name)
    assert counted.runs == sum(counted.strikes.values()) == len(list(singles(run(STORIES[name], {}).met)))
    assert name != "submission" or counted.strikes.keys() == WAYS


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("name", [name for name in STORIES if name not in QUICK])
def test_whatever_goes_wrong_once_under_a_lease_breaks_no_promise(name: str) -> None:
    """Goal: the same where the log alone decides who leads. Method: as above."""
    assert enumerated(name).runs > 50  # there is no database whose statements could be lost


@pytest.mark.slow
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("name", ["submission", "registration"])
def test_whatever_goes_wrong_twice_breaks_no_promise(name: str) -> None:
    """Goal: no two that need each other are untried. Method: each second misfortune after each first one."""
    assert enumerated(name, pairs=True).runs > 1_000


@pytest.mark.parametrize("mutant", ["backlog_not_published", "unknown_answered_as_refused", "position_written_apart"])
def test_a_defect_that_one_misfortune_shows_is_found(monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    """Goal: an enumeration that finds nothing proves something. Method: defects in the product's code; the story as it
    is hides them, one misfortune does not."""
    story = STORIES["submission"]
    next(one for one in MUTANTS if one.name == mutant).apply(monkeypatch)
    as_it_is = run(story, {})
    assert not as_it_is.outcome.violations
    assert any(run(story, {number: way}).outcome.violations for number, way in singles(as_it_is.met))
