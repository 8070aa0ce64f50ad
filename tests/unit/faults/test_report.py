"""The report of the fault scenarios: what counts as passed, how entries meet, what the totals are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.report import ScenarioResult, add_to_report, line_of, read_report, report_of, result


def entry(name: str = "F1 a kill", **changes: object) -> ScenarioResult:
    """A scenario that went well, but for the changes."""
    told: dict[str, object] = {
        "name": name,
        "fault": name.split(maxsplit=1)[0],
        "faults": ["r1 ended"],
        "operations": 10,
        "counts": {},
        "outages_s": [0.5, 2.0, 1.0],
        "outage_goal_s": 2.0,
        "took_s": 3.0,
        "error": None,
    }
    return result(**{**told, **changes})  # type: ignore[arg-type]


def test_outages_are_summed_up() -> None:
    """Goal: median and worst are printed, or neither. Method: three outages; none."""
    assert (entry().outage_s_median, entry().outage_s_max) == (1.0, 2.0)
    assert entry(outages_s=[]).outage_s_median is None


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"faults": []}, id="no-fault-fired"),
        pytest.param({"operations": 0}, id="nothing-was-checked"),
        pytest.param({"error": "call failed"}, id="the-test-failed"),
        pytest.param({"counts": {"ORDER_BROKEN": 1}}, id="a-finding"),
    ],
)
def test_what_proves_nothing_has_not_passed(changes: dict[str, object]) -> None:
    """Goal: an entry passes only with a fault, checked operations and no finding. Method: leave out one of them."""
    assert entry().passed
    assert not entry(**changes).passed


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        pytest.param({}, False, id="on-the-goal"),
        pytest.param({"outage_goal_s": 1.0, "patience": 2.0}, False, id="on-the-goal-of-a-shared-machine"),
        pytest.param({"outage_goal_s": 0.9, "patience": 2.0}, True, id="beyond-it"),
        pytest.param({"outage_goal_s": 1.9}, True, id="the-worst"),
        pytest.param({"median_goal_s": 0.9}, True, id="the-median"),
        pytest.param({"outage_goal_s": None}, False, id="no-goal"),
        pytest.param({"outages_s": []}, False, id="no-outage"),
    ],
)
def test_a_goal_is_missed_by_the_worst_or_by_the_median(changes: dict[str, object], missed: bool) -> None:
    """Goal: an outage above its goal fails its scenario. Method: goals above, on and below the figures."""
    one = entry(**changes)
    assert (one.missed_goal, one.passed) == (missed, not missed)
    assert one.why_failed == ("a goal was missed" if missed else "")
    assert ("MISSED" in line_of(one)) == missed
    assert report_of([one], {}).totals.goals_missed == missed


def test_a_scenario_is_told_on_one_line() -> None:
    """Goal: who waits for a run sees how each scenario ended. Method: one that passed, one that failed at length."""
    assert line_of(entry()) == "F1 a kill: passed, worst outage 2.00 s, goal 2.00, 10 operations, 3 s"
    failed = line_of(entry(outages_s=[], error="call failed: 32 == 31\n + where"))
    assert failed == "F1 a kill: FAILED: call failed: 32 == 31, 10 operations, 3 s"


def test_findings_are_told_apart() -> None:
    """Goal: double spends and lost answers are counted apart. Method: the checker's counts by code."""
    found = entry(counts={"DOUBLE_SPEND": 2, "LOST_ANSWER": 1, "WRONG_VERDICT": 3, "COMPLETION_EXTRA": 9})
    assert (found.double_spends, found.acknowledged_lost) == (2, 4)


def test_a_run_replaces_what_it_ran(tmp_path: Path) -> None:
    """Goal: one scenario can be run again alone, at another commit. Method: write two, one of them again, read all."""
    path = tmp_path / "faults.json"
    add_to_report([entry("F10 a hung host"), entry("F2 a pause", error="call failed")], {"commit": "a"}, path)
    add_to_report([entry("F2 a pause", operations=30)], {"commit": "b"}, path)
    report = read_report(path)
    assert [one.name for one in report.scenarios] == ["F2 a pause", "F10 a hung host"]
    assert (report.totals.scenarios, report.totals.passed, report.totals.operations) == (2, 2, 40)
    assert report.conditions == {"commit": "a, b"}


def test_totals_count_everything() -> None:
    """Goal: nothing is hidden in a total. Method: one good entry, one with findings."""
    totals = report_of([entry(), entry("F3 a zombie", counts={"DOUBLE_SPEND": 1})], {}).totals
    assert (totals.passed, totals.double_spends, totals.faults_fired) == (1, 1, 2)
