"""The doctor's judgement, pure: facts in, findings out. Every check has a name, every finding has a remedy."""

from __future__ import annotations

from collections.abc import Iterator

from replica.doctor import judge_around, judge_database, judge_here, judge_service
from replica.doctor.facts import Facts
from replica.doctor.verdict import Checks, Finding, Severity

_CHECKS = Checks(judge_here.CHECKS | judge_database.CHECKS | judge_service.CHECKS | judge_around.CHECKS)


def examine(facts: Facts) -> list[Finding]:
    """One finding for each check, in the order in which they are documented."""
    return [Finding(name, *judge(facts)) for name, judge in _CHECKS.items()]


def refused_configuration(problem: str) -> list[Finding]:
    """The findings where the configuration itself cannot be used: nothing else can be looked at."""
    fix = "correct the setting; docs/settings.md has them all, `notary init` writes a whole file"
    first, *others = _CHECKS
    return [
        Finding(first, Severity.PROBLEM, problem, fix),
        *(Finding(name, Severity.UNKNOWN, "there is no valid configuration") for name in others),
    ]


def check_names() -> list[str]:
    """Every check, in order."""
    return list(_CHECKS)


def descriptions() -> Iterator[tuple[str, str]]:
    """Name of each check, and what it is about."""
    for name, judge in _CHECKS.items():
        yield name, " ".join((judge.__doc__ or "").split())
