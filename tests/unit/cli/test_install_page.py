"""An installation by docs/install.md, heading by heading: what is named as missing is what was not done yet.

No server runs: what is found without a step is given. tests/integration/test_install.py asks on real ones.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from replica.cli.install_steps import STEPS, progress
from replica.doctor.checks import examine, refused_configuration
from replica.doctor.facts import Facts
from tests.unit.doctor.test_checks import HEALTHY

PAGE = Path(__file__).parents[3] / "docs/install.md"
NAMES = [step.name for step in STEPS]
HEADINGS = [found for found in re.findall(r"^## (.+)$", PAGE.read_text(), re.MULTILINE) if found in NAMES]
SEEN = {step.name for step in STEPS if step.checks}
CONFIGURED = HEADINGS.index("Configuration")
NO_ROLE = "no such role"
Change = Callable[[Facts], Facts]


def part(name: str, **changes: Any) -> Change:
    """Some facts of one part are otherwise."""
    return lambda facts: replace(facts, **{name: replace(getattr(facts, name), **changes)})


def together(*changes: Change) -> Change:
    """One after the other."""

    def changed(facts: Facts) -> Facts:
        for change in changes:
            facts = change(facts)
        return facts

    return changed


def without(check: str) -> Change:
    """A file that this check is about is not there."""
    return lambda facts: replace(
        facts, files=replace(facts.files, problems={**facts.files.problems, check: "no such file"})
    )


def rights(missing: tuple[str, ...]) -> Change:
    def change(facts: Facts) -> Facts:
        assert facts.database.postgres is not None
        postgres = replace(facts.database.postgres, missing_rights=missing)
        return replace(facts, database=replace(facts.database, postgres=postgres))

    return change


def nobody_answers(facts: Facts) -> Facts:
    silent = tuple(replace(one, answers=False, active=False, serves=False, ready=False) for one in facts.replicas)
    return replace(facts, replicas=silent)


def archiver_is_silent(facts: Facts) -> Facts:
    assert facts.around.archiver is not None
    return replace(facts, around=replace(facts.around, archiver=replace(facts.around.archiver, age_s=None)))


def keepalived_lacks_its_file(facts: Facts) -> Facts:
    assert facts.around.keepalived is not None
    return replace(facts, around=replace(facts.around, keepalived=replace(facts.around.keepalived, as_rendered=None)))


UNDONE: Mapping[str, Change] = {
    "Roles and database": together(
        part("database", session_problem=("HA_LOCK_UNAVAILABLE", NO_ROLE), reach_problem=NO_ROLE, postgres=None),
        without("database-password"),
    ),
    "Certificates": without("api-certificates"),
    "Keys and parties": together(without("notary-key"), without("operator-keys")),
    "Tables and grants": together(part("database", schema_problem="there are no tables"), rights(("participant",))),
    "Topic": together(
        part("log", topic_id=None, missing=True, problem="there is no topic"), part("database", bound_topic_id=None)
    ),
    "Replicas": nobody_answers,
    "HAProxy": part("balancer", answers=False, up=(), endpoint_problem="connection refused"),
    "keepalived": keepalived_lacks_its_file,
    "Prometheus": part("around", exporters={"haproxy-1:1": False, "haproxy-2:1": False}),
    "Archive": archiver_is_silent,
}
"""What the doctor finds on the machines while a step of the page was not done."""


def shown(at: int) -> dict[str, bool | None]:
    """Each step, as `notary init --check` shows it after so many steps of the page."""
    if at <= CONFIGURED:
        findings = refused_configuration("notary.toml cannot be read")
    else:
        findings = examine(together(*(UNDONE[name] for name in HEADINGS[at:] if name in UNDONE))(HEALTHY))
    return {one.step.name: one.done for one in progress({one.check: one for one in findings})}


def named(at: int, done: bool | None) -> list[str]:
    """The steps that are shown as done (True), missing (False), or not seen (None)."""
    return [name for name, found in shown(at).items() if found is done]


def test_every_step_that_can_be_seen_is_undone_once() -> None:
    """Goal: a new heading comes with what is found without it. Method: the page, the steps, and the table above."""
    assert HEADINGS == NAMES
    assert set(UNDONE) == SEEN - {"Configuration"}


@pytest.mark.parametrize("at", range(CONFIGURED + 1), ids=HEADINGS[: CONFIGURED + 1])
def test_without_a_configuration_that_alone_is_named(at: int) -> None:
    """Goal: nothing is said to be done, or missing, that was not looked at. Method: before the file is written."""
    assert (named(at, False), named(at, True)) == (["Configuration"], [])


@pytest.mark.parametrize("at", range(CONFIGURED + 1, len(HEADINGS)), ids=HEADINGS[CONFIGURED + 1 :])
def test_exactly_the_steps_not_yet_done_are_named(at: int) -> None:
    """Goal: whoever stopped somewhere knows where to go on. Method: before each heading, what is there by then."""
    assert named(at, False) == [name for name in HEADINGS[at:] if name in SEEN]
    assert named(at, True) == HEADINGS[:at]


@pytest.mark.parametrize("name", UNDONE)
def test_a_step_that_was_left_out_is_named_alone(name: str) -> None:
    """Goal: nobody looks in another place. Method: everything but one step."""
    found = progress({one.check: one for one in examine(UNDONE[name](HEALTHY))})
    assert [one.step.name for one in found if one.done is False] == [name]
