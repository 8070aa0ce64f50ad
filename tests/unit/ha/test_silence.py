"""When a lease over a log is free: silence counts only where the log was seen to work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ha.lock.interface import ReleaseNote
from ha.lock.silence import LeaseView, Silence, confirmed, heard, is_free, question_at_s
from ha.settings import ElectionSettings

SETTINGS = ElectionSettings(lease_s=3.0, heartbeat_s=0.5)
HELD = LeaseView("log", 4, b"a" * 16, "R1", None, 17)


def waited(silence: Silence) -> tuple[Silence, float]:
    """Ask at each moment that is due, always answered, until the lease is free; and when the last question was."""
    asked_at_s = silence.counted_to_s
    while not is_free(HELD, silence, SETTINGS):
        asked_at_s = question_at_s(silence, SETTINGS)
        silence = confirmed(silence, asked_at_s, SETTINGS)
    return silence, asked_at_s


def test_a_lease_is_free_after_its_whole_length_of_confirmed_silence() -> None:
    """Goal: neither earlier nor later. Method: move the clock from question to question."""
    silence, free_at_s = waited(heard(None, HELD, 100.0))
    assert free_at_s == pytest.approx(103.0)
    assert silence.silent_s == pytest.approx(3.0)


def test_nothing_is_asked_while_heartbeats_come() -> None:
    """Goal: a living holder costs no records. Method: its next heartbeat comes before the first question is due."""
    silence = heard(None, HELD, 100.0)
    assert question_at_s(silence, SETTINGS) > 100.0 + SETTINGS.heartbeat_s
    again = heard(silence, replace(HELD, witnessed=18), 100.6)
    assert again == Silence(4, 18, 100.6)


@pytest.mark.parametrize("change", [{"witnessed": 18}, {"epoch": 5}])
def test_any_record_of_the_holder_begins_the_count_anew(change: dict[str, int]) -> None:
    """Goal: a holder that lives is not deposed. Method: it writes, or another claims, shortly before the end."""
    silence = replace(heard(None, HELD, 100.0), silent_s=2.9, counted_to_s=102.9)
    assert heard(silence, replace(HELD, **change), 102.95).silent_s == 0.0
    assert heard(silence, HELD, 102.95) == silence


@pytest.mark.parametrize("away_s", [10.0, 100_000.0])
def test_time_that_no_answer_confirms_counts_next_to_nothing(away_s: float) -> None:
    """Goal: an outage of the log, or a suspension of the waiter, deposes nobody. Method: one question long after."""
    silence = confirmed(heard(None, HELD, 100.0), 100.0 + away_s, SETTINGS)
    most_s = 2 * SETTINGS.heartbeat_s + SETTINGS.poll_max_s
    assert silence.silent_s == pytest.approx(most_s)
    _, free_at_s = waited(silence)
    assert free_at_s == pytest.approx(100.0 + away_s + SETTINGS.lease_s - most_s)


def test_an_answer_to_an_older_question_takes_nothing_back() -> None:
    """Goal: answers may come out of order. Method: confirm an earlier moment."""
    silence = confirmed(heard(None, HELD, 100.0), 100.5, SETTINGS)
    assert confirmed(silence, 100.2, SETTINGS) == silence


def test_a_lease_that_nobody_holds_is_free_at_once() -> None:
    """Goal: the first claim of an empty log, and a switchover, wait for nothing. Method: both views."""
    for view in (
        LeaseView("log", 0, b"", None, None, -1),
        LeaseView("log", 5, b"b" * 16, None, ReleaseNote("R1", "R2"), 18),
    ):
        assert is_free(view, heard(None, view, 100.0), SETTINGS)
    assert not is_free(HELD, heard(None, HELD, 100.0), SETTINGS)


def test_a_lease_whose_holder_ended_is_free_at_once() -> None:
    """Goal: a proof replaces the silence, and no silence is needed. Method: the same view with and without it."""
    silence = heard(None, HELD, 100.0)
    assert is_free(replace(HELD, holder_ended=True), silence, SETTINGS)
    assert not is_free(HELD, silence, SETTINGS)


def test_a_silence_that_the_log_knows_need_not_be_counted() -> None:
    """Goal: an election of the log's leader is no time lost. Method: the holder's last record is read when the log's
    servers have had it for two seconds; then the same count goes on, and a view that knows less changes nothing."""
    silence = heard(None, replace(HELD, quiet_s=2.0), 100.0)
    assert silence == Silence(4, 17, 100.0, 2.0)
    assert heard(silence, replace(HELD, quiet_s=1.0), 100.4) == silence
    assert waited(silence)[1] == pytest.approx(101.0)
    assert heard(silence, replace(HELD, quiet_s=2.5), 100.5) == Silence(4, 17, 100.5, 2.5)
    assert is_free(HELD, heard(silence, replace(HELD, quiet_s=3.0), 101.0), SETTINGS)


def test_a_silence_before_the_newest_record_does_not_count() -> None:
    """Goal: a holder that lives is not deposed. Method: it writes; nothing is known of the time since."""
    silence = heard(None, replace(HELD, quiet_s=2.9), 100.0)
    assert heard(silence, replace(HELD, witnessed=18), 100.1) == Silence(4, 18, 100.1)
