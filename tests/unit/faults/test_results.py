"""The page of results shows what the runs found, and nothing that was not run."""

from __future__ import annotations

from tests.faults.report import report_of
from tests.faults.results import Simulated, render, render_workers
from tests.unit.faults.test_report import entry

PINS = {"answer_before_read_back": 1, "grace_ignored": 5, "lease_ignored": 447}


def test_a_page_has_totals_and_a_line_for_each_scenario() -> None:
    """Goal: what was run is shown, failures too. Method: one scenario that passed, one with a double spend."""
    faults = report_of(
        [entry(), entry("F9 split brain", counts={"DOUBLE_SPEND": 1}, error="call failed: why\nmore")], {}
    )
    page = render(faults, Simulated(2_000, 147_028), PINS, {"kill_outage_s_median": 0.5, "kill_outage_s_max": 0.75})
    assert "1 of 2 scenarios passed" in page
    assert "**20 operations checked, 0 acknowledged answers lost or changed, 1 double spends**" in page
    assert "| F1 a kill | 1 | 10 | 1.00 | 2.00 | 2.00 | 0 | 0 | 3 | yes |" in page
    assert "- F9 split brain: call failed: why\n" in page
    assert "2,000 seeds run, 147,028 operations checked. 3 of 3 mutants" in page
    assert "half of them within 5 seeds, the slowest within 447" in page
    assert "| kill -9 of the active | 0.50 | 0.75 |" in page


def test_a_goal_that_was_missed_is_seen() -> None:
    """Goal: a figure above its goal is not hidden in a table. Method: one scenario on its goals, one above."""
    scenarios = [entry(median_goal_s=1.0), entry("F2 a pause", outages_s=[2.5])]
    page = render(report_of(scenarios, {}), None, PINS, None)
    assert "| 1.00 | 2.00 | 2.00, median 1.00 |" in page
    assert "| 2.50 | **2.50** | 2.00 |" in page
    assert "1 of 2 scenarios that have a goal for the outage met it." in page


def test_what_was_not_run_is_not_on_the_page() -> None:
    """Goal: no empty claims. Method: no faults, no seeds, no bench."""
    page = render(None, None, PINS, None)
    assert "## Faults" not in page
    assert "seeds run" not in page
    assert "## Fail-over" not in page


def test_a_page_of_workers_has_each_profile_and_the_sum() -> None:
    """Goal: one sum over all profiles, and a busy machine is told. Method: two profiles, one with patience."""
    reports = {
        "kafka-workers": report_of([entry(patience=2.5)], {}),
        "postgres-workers": report_of([entry(), entry("F9 split brain", counts={"LOST_ANSWER": 2}, error="why")], {}),
    }
    page = render_workers(reports)
    assert "Together: **30 operations checked, 2 acknowledged answers lost or changed, 0 double spends**" in page
    kafka, postgres = page.split("## Profile ")[1:]
    assert "kafka-workers\n1 of 1 scenarios passed" in kafka
    assert "The machine did other things too" in kafka
    assert "1 of 2 scenarios passed" in postgres
    assert "The machine did other things too" not in postgres
