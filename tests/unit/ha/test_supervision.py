"""What follows the end of a process that somebody keeps running: a pure step, on a clock that the test moves."""

from __future__ import annotations

from ha.supervision import GiveUp, RestartPolicy, StartAgain, after_end
from replica.notary.exit_codes import EXIT_CONFIGURATION, EXIT_FAILED

POLICY = RestartPolicy(person_code=EXIT_CONFIGURATION, pause_s=2.0, pause_max_s=60.0)


def test_what_needs_a_person_is_left_down() -> None:
    """Goal: no crash loop over a setting. Method: each kind of end, a signal's as well; whatever went before."""
    assert after_end(EXIT_CONFIGURATION, 7, 100.0, POLICY) == GiveUp()
    for code in (0, EXIT_FAILED, -9, None):
        assert after_end(code, 0, 100.0, POLICY) == StartAgain(102.0, 2.0, 1)


def test_what_has_no_such_exit_code_is_always_started_again() -> None:
    """Goal: an unknown end is no reason to give up. Method: every kind of end under a policy without the code."""
    steady = RestartPolicy(pause_s=0.1, pause_max_s=2.0)
    for code in (0, EXIT_CONFIGURATION, EXIT_FAILED, -9, None):
        assert after_end(code, 0, 100.0, steady) == StartAgain(100.1, 0.1, 1)


def test_the_pause_doubles_with_each_failure_in_a_row_up_to_its_bound() -> None:
    """Goal: a crash loop does not eat the machine. Method: failures in a row; then a policy whose pause is constant."""
    assert [after_end(1, failures, 0.0, POLICY) for failures in (1, 4, 5, 10_000)] == [
        StartAgain(4.0, 4.0, 2),
        StartAgain(32.0, 32.0, 5),
        StartAgain(60.0, 60.0, 6),
        StartAgain(60.0, 60.0, 10_001),
    ]
    steady = RestartPolicy(person_code=EXIT_CONFIGURATION, pause_s=0.2, pause_max_s=0.2)
    assert after_end(1, 9, 0.0, steady) == StartAgain(0.2, 0.2, 10)
