"""How far an installation is, by what the doctor found."""

from __future__ import annotations

import pytest

from replica.cli.install_steps import STEPS, progress
from replica.doctor.checks import check_names
from replica.doctor.verdict import Finding, Severity


def done(**severities: Severity) -> dict[str, bool | None]:
    """Each step with checks, when these findings are so and all others are well."""
    named = {name.replace("_", "-"): severity for name, severity in severities.items()}
    findings = {
        name: Finding(name, named.get(name, Severity.OK), f"about {name}", f"mend {name}") for name in check_names()
    }
    return {one.step.name: one.done for one in progress(findings) if one.step.checks}


def test_every_check_of_a_step_is_one_of_the_doctors() -> None:
    """Goal: a check that is renamed is noticed. Method: names on both sides."""
    assert {name for step in STEPS for name in step.checks} <= set(check_names())


def test_all_is_done_where_the_doctor_finds_nothing() -> None:
    """Goal: no false alarm. Method: every check is well."""
    assert set(done().values()) == {True}


@pytest.mark.parametrize(
    ("severity", "topic", "monitoring"),
    [
        (Severity.PROBLEM, False, False),
        (Severity.WARNING, True, False),  # it serves, but the page's step was not made
        (Severity.UNKNOWN, None, None),
    ],
)
def test_a_step_that_lacks_something_is_named(severity: Severity, topic: bool | None, monitoring: bool | None) -> None:
    """Goal: what is missing is named, and nothing else. Method: one finding of each kind in two steps."""
    found = done(log_contract=severity, monitoring=severity)
    assert (found.pop("Topic"), found.pop("Prometheus")) == (topic, monitoring)
    assert set(found.values()) == {True}


def test_what_is_missing_comes_with_what_to_do() -> None:
    """Goal: nothing to look up. Method: the text of a step that is not done."""
    broken = Finding("schema", Severity.PROBLEM, "no tables", "notary store migrate")
    (found,) = [one for one in progress({"schema": broken}) if one.done is False]
    assert (found.step.name, found.text) == ("Tables and grants", "no tables: notary store migrate")
