"""The pytest plugin that turns every scenario into an entry of build/faults.json, whatever its outcome.

With another log than Kafka, of build/faults-KIND.json; where all replicas serve, of build/faults-KIND-workers.json.

A test that carries `@pytest.mark.scenario("F9", "what happens")` is one scenario. It reports to the fixture `scenario`
which faults took effect and how long clients were not served, and has the clients' answers audited. A scenario
that is skipped, or whose fixtures fail, has an entry too: as failed.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from replica.local.cluster import LocalCluster
from tests.faults.audit import Violation, audit
from tests.faults.load import ClientLoad, LoadBroken, outage_around
from tests.faults.report import SHARED_MACHINE_PATIENCE, ScenarioResult, add_to_report, line_of, report_path, result
from tests.log_kind import profile_of
from tests.promises import promised
from tests.worlds.porcupine import Verdict

_SCENARIO = pytest.StashKey["Scenario"]()
_ERROR = pytest.StashKey[str]()
_PROGRESS = pytest.StashKey["Progress"]()
_ERROR_CHARS_MAX = 500
QUIET_MACHINE = "--quiet-machine"


@dataclass(slots=True)
class Scenario:
    """What a scenario reports while it runs."""

    fault: str
    what: str
    outage_goal_s: float | None = None
    median_goal_s: float | None = None
    patience: float = 1.0
    faults: list[str] = field(default_factory=list)
    outages_s: list[float] = field(default_factory=list)
    histories: list[Path] = field(default_factory=list)
    operations: int = 0
    counts: Counter[str] = field(default_factory=Counter)  # the checker's findings by code
    summary: dict[str, Any] = field(default_factory=dict)  # of the newest audit
    judged: list[Verdict] = field(default_factory=list)  # by Porcupine, one an audit
    began_s: float = field(default_factory=monotonic)

    def fired(self, what: str) -> None:
        """Record that a fault was seen to take effect; a request for it is not enough."""
        self.faults.append(what)

    def outage(self, load: ClientLoad, fault_ns: int, until_ns: int | None = None) -> float:
        """Note how long the clients of a load saw no success after a moment; returns it, in seconds.

        Call it once the service is back. Raises LoadBroken when there was no success before, or none after.
        """
        seen = outage_around(load.successes_ns(), fault_ns, until_ns)
        self.outages_s.append(seen.outage_s)
        return seen.outage_s

    def served_again(self, load: ClientLoad, moment_ns: int) -> float:
        """Note how long after a moment clients had a success; returns it, in seconds.

        For a part without which no notary serves: the moment of its return, or of its successor's. Call it once the
        service is back. Raises LoadBroken when there was none.
        """
        after_ns = next((at_ns for at_ns in load.successes_ns() if at_ns > moment_ns), None)
        if after_ns is None:
            raise LoadBroken("no success since the service is said to be back")
        self.outages_s.append((after_ns - moment_ns) / 1e9)
        return self.outages_s[-1]

    def add_history(self, path: Path) -> None:
        """Have one more client's history audited."""
        self.histories.append(path)

    def checked(self, operations: int, counts: Counter[str] | None = None) -> None:
        """Record a number of operations that were checked by other means than `audit`, and their findings."""
        self.operations += operations
        self.counts.update(counts or {})

    async def audit(self, cluster: LocalCluster, first_offset: int, *, partial: bool = False) -> None:
        """Check all histories so far with `notary check`, and begin new ones. Raises Violation.

        `partial`: the log has records of others since `first_offset`.
        """
        histories, self.histories = self.histories, []
        try:
            self.summary = await audit(cluster, histories, first_offset, partial=partial)
        except Violation as violation:
            self.checked(violation.operations, Counter(violation.counts))
            raise
        self.checked(int(self.summary["operations"]))
        if "porcupine" in self.summary:
            self.judged.append(Verdict(**self.summary["porcupine"]))

    def result(self, name: str, error: str | None) -> ScenarioResult:
        """The entry in the report."""
        return result(
            name=name,
            fault=self.fault,
            faults=self.faults,
            operations=self.operations,
            counts=self.counts,
            outages_s=self.outages_s,
            outage_goal_s=self.outage_goal_s,
            median_goal_s=self.median_goal_s,
            patience=self.patience,
            took_s=monotonic() - self.began_s,
            error=error,
        )


@pytest.fixture
def scenario(request: pytest.FixtureRequest) -> Iterator[Scenario]:
    """The entry that this test makes in build/faults.json. Raises PromiseBroken when an outage missed its goal."""
    found = _scenario_of(request.node)
    yield found
    entry = found.result(_name_of(request.node), None)
    promised(not entry.missed_goal, f"a goal was missed: {line_of(entry)}; every outage, in s: {entry.outages_s}")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make faults` sets it."""
    parser.addoption(QUIET_MACHINE, action="store_true", help="hold outages to their goals as they are: see report.py")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin before the fixtures, which may fail."""
    if item.get_closest_marker("scenario") is not None:
        _scenario_of(item).began_s = monotonic()
        if _PROGRESS not in item.session.stash:
            planned = sum(one.get_closest_marker("scenario") is not None for one in item.session.items)
            item.session.stash[_PROGRESS] = Progress(planned)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep what went wrong first, and write the entry as soon as the test is over: a run may be cut short."""
    report = yield
    if not report.passed and _ERROR not in item.stash:
        shown = str(call.excinfo.value) if call.excinfo is not None else ""
        item.stash[_ERROR] = f"{report.when} {report.outcome}: {shown}"[:_ERROR_CHARS_MAX]
    if report.when == "teardown" and _SCENARIO in item.stash:
        entry = item.stash[_SCENARIO].result(_name_of(item), item.stash.get(_ERROR, None))
        profile = profile_of(item.config)
        add_to_report([entry], _conditions(profile), report_path(profile))
        _tell(item, entry)
    return report


def has_failed(item: pytest.Item) -> bool:
    """Whether something has gone wrong with a test so far."""
    return _ERROR in item.stash


@dataclass(slots=True)
class Progress:
    """How far a run has come."""

    planned: int
    began_s: float = field(default_factory=monotonic)
    done: int = 0


def _tell(item: pytest.Item, entry: ScenarioResult) -> None:
    """One line for people who wait."""
    progress = item.session.stash[_PROGRESS]
    progress.done += 1
    reporter = item.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        minutes = (monotonic() - progress.began_s) / 60
        reporter.ensure_newline()
        reporter.write_line(f"[{progress.done}/{progress.planned}, {minutes:.0f} min] {line_of(entry)}")
        for verdict in item.stash[_SCENARIO].judged:
            reporter.write_line(f"    {verdict.line}")


def _scenario_of(item: pytest.Item) -> Scenario:
    if _SCENARIO not in item.stash:
        marker = item.get_closest_marker("scenario")
        if marker is None:
            raise pytest.UsageError(f"{item.nodeid} asks for a scenario and is not marked as one")
        fault, what = marker.args
        quiet = item.config.getoption(QUIET_MACHINE, default=False)
        patience = 1.0 if quiet else SHARED_MACHINE_PATIENCE
        item.stash[_SCENARIO] = Scenario(fault, what, patience=patience, **marker.kwargs)
    return item.stash[_SCENARIO]


def _name_of(item: pytest.Item) -> str:
    """`F1 the active is killed [group]`: the same from run to run."""
    found = item.stash[_SCENARIO]
    _, bracket, variant = item.name.partition("[")
    return f"{found.fault} {found.what}{' ' + bracket + variant if bracket else ''}"


def _conditions(log: str) -> dict[str, str]:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "commit": commit or "unknown",
        "linux": platform.release(),
        "python": platform.python_version(),
        "processors": str(os.cpu_count()),
        "log.kind": log,
        "load average at the end": f"{os.getloadavg()[0]:.1f}",
    }
