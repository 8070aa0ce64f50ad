"""The doctor's checks, and the findings that they may return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from replica.doctor.facts import Facts


class Severity(StrEnum):
    """How serious a finding is."""

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
        """Registers a judge under this name."""

        def take_in(judge: Judge) -> Judge:
            self[name] = judge
            return judge

        return take_in

    def of_file(self, name: str, fix: str | Callable[[Facts], str]) -> Callable[[Judge], Judge]:
        """As `check`, for a judge that runs only when its files are as a replica needs them."""

        def take_in(judge: Judge) -> Judge:
            def judged(facts: Facts) -> Verdict:
                found = facts.files.problems.get(name)
                return judge(facts) if found is None else problem(found, fix if isinstance(fix, str) else fix(facts))

            judged.__doc__ = judge.__doc__
            return self.check(name)(judged)

        return take_in


class SharedChecks(Checks):
    """Checks of a database that the replicas share: without one, all is well."""

    def check(self, name: str) -> Callable[[Judge], Judge]:
        """As `Checks.check`."""
        register = super().check(name)

        def take_in(judge: Judge) -> Judge:
            def judged(facts: Facts) -> Verdict:
                if facts.database.embedded:
                    return ok("the replicas share no database: the log leads, and each has a ledger of its own")
                return judge(facts)

            judged.__doc__ = judge.__doc__
            return register(judged)

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
