"""What a check of the doctor's is, and what it may say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from replica.doctor.facts import Facts


class Severity(StrEnum):
    """What a finding asks for."""

    OK = "ok"
    WARNING = "warning"  # serves, but not as safely or as comfortably as it should
    PROBLEM = "problem"  # must be mended: it does not serve, or may lose what it promised
    UNKNOWN = "unknown"  # could not be looked at; another finding says why


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found. `fix` is empty when all is well."""

    check: str
    severity: Severity
    text: str
    fix: str = ""


Verdict = tuple[Severity, str, str]
Judge = Callable[[Facts], Verdict]


class Checks(dict[str, Judge]):
    """Checks by their names, in the order in which they are documented."""

    def check(self, name: str) -> Callable[[Judge], Judge]:
        """Takes a judge in under this name."""

        def take_in(judge: Judge) -> Judge:
            self[name] = judge
            return judge

        return take_in

    def of_file(self, name: str, fix: str) -> Callable[[Judge], Judge]:
        """As `check`, of one that judges only once the files that it is about are as a replica needs them."""

        def take_in(judge: Judge) -> Judge:
            def judged(facts: Facts) -> Verdict:
                found = facts.files.problems.get(name)
                return judge(facts) if found is None else problem(found, fix)

            judged.__doc__ = judge.__doc__
            return self.check(name)(judged)

        return take_in


def ok(text: str) -> Verdict:
    """Nothing to do."""
    return Severity.OK, text, ""


def problem(text: str, fix: str) -> Verdict:
    """To be mended."""
    return Severity.PROBLEM, text, fix


def warning(text: str, fix: str) -> Verdict:
    """It serves, but should be better."""
    return Severity.WARNING, text, fix


def unknown(text: str) -> Verdict:
    """Not looked at, and why."""
    return Severity.UNKNOWN, text, ""


def unless_development(facts: Facts, text: str, fix: str) -> Verdict:
    """A problem, but only a warning where one broker says that nothing must be kept."""
    return warning(text, fix) if facts.development else problem(text, fix)
