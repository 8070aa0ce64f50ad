"""What a run of the fault scenarios found: build/faults.json with one entry a scenario, and totals over all of them.

A run with another log than Kafka has a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from replica.checker.findings import FindingCode

JSON = Path("build/faults.json")

# Goals are for a machine that does nothing else. `make faults` asks for one, and holds outages to their goals as they
# are (`--quiet-machine`). Any other run shares the machine with builds and tests: an outage may last this many times as
# long, and one that lasts longer is no matter of a busy machine any more.
SHARED_MACHINE_PATIENCE = 2.5

_DOUBLE = {FindingCode.DOUBLE_SPEND.name}
# An answer that was given and does not hold: gone from the log, or another one there.
_LOST = {
    FindingCode.LOST_ANSWER.name,
    FindingCode.OK_FOR_VOID.name,
    FindingCode.WRONG_RECORD.name,
    FindingCode.SHARED_RECORD.name,
    FindingCode.WRONG_VERDICT.name,
    FindingCode.WRONG_OFFSET.name,
    FindingCode.WRONG_DIGEST.name,
    FindingCode.DENIED.name,
    FindingCode.RECEIPT_INVALID.name,
}


class ScenarioResult(msgspec.Struct, frozen=True, kw_only=True):
    """One scenario. Counts are of the checker's findings; an outage is what clients saw between two successes.

    `passed` means that the test held, at least one fault was seen to take effect, operations were checked, and
    no goal was missed.
    """

    name: str
    fault: str  # F1 to F43, or what was found on the way
    faults: list[str]  # what was seen to take effect
    faults_fired: int
    operations: int
    acknowledged_lost: int
    double_spends: int
    outages_s: list[float]
    outage_s_median: float | None
    outage_s_max: float | None
    outage_goal_s: float | None  # the longest that it is meant to be, on a machine that does nothing else
    took_s: float
    passed: bool
    error: str | None = None
    median_goal_s: float | None = None  # and the longest that their median is meant to be
    patience: float = 1.0  # how many times as long as the goals an outage may be: see SHARED_MACHINE_PATIENCE
    commit: str = ""  # of the release that was played

    @property
    def why_failed(self) -> str:
        """In one line; empty for one that passed."""
        if self.passed:
            return ""
        return _first_line(self.error) or ("a goal was missed" if self.missed_goal else "proves nothing")

    @property
    def has_goal(self) -> bool:
        """Whether an outage was measured that is meant to be no longer than something."""
        return self.outage_s_max is not None and self.outage_goal_s is not None

    @property
    def missed_goal(self) -> bool:
        """Whether an outage, or their median, was longer than it is meant to be."""
        pairs = ((self.outage_s_max, self.outage_goal_s), (self.outage_s_median, self.median_goal_s))
        return any(
            was_s is not None and goal_s is not None and was_s > self.patience * goal_s for was_s, goal_s in pairs
        )


class Totals(msgspec.Struct, frozen=True, kw_only=True):
    """All scenarios together."""

    scenarios: int
    passed: int
    faults_fired: int
    operations: int
    acknowledged_lost: int
    double_spends: int
    goals: int = 0  # scenarios that measured an outage and have a goal for it
    goals_missed: int = 0
    took_s: float = 0.0  # the making of clusters included


class FaultsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The file. `conditions`: of the machine and the release, by name; `commit` names those of all scenarios."""

    scenarios: list[ScenarioResult]
    totals: Totals
    conditions: dict[str, str]


def result(
    *,
    name: str,
    fault: str,
    faults: Sequence[str],
    operations: int,
    counts: Mapping[str, int],
    outages_s: Sequence[float],
    outage_goal_s: float | None,
    took_s: float,
    error: str | None,
    median_goal_s: float | None = None,
    patience: float = 1.0,
) -> ScenarioResult:
    """The entry of a scenario; `counts` are the checker's findings by code. A finding of any kind is an error too."""
    measured = ScenarioResult(
        name=name,
        fault=fault,
        faults=list(faults),
        faults_fired=len(faults),
        operations=operations,
        acknowledged_lost=sum(count for code, count in counts.items() if code in _LOST),
        double_spends=sum(count for code, count in counts.items() if code in _DOUBLE),
        outages_s=[round(outage_s, 3) for outage_s in outages_s],
        outage_s_median=round(median(outages_s), 3) if outages_s else None,
        outage_s_max=round(max(outages_s), 3) if outages_s else None,
        outage_goal_s=outage_goal_s,
        took_s=round(took_s, 1),
        passed=error is None and bool(faults) and operations > 0 and not any(counts.values()),
        error=error,
        median_goal_s=median_goal_s,
        patience=patience,
    )
    return msgspec.structs.replace(measured, passed=measured.passed and not measured.missed_goal)


def line_of(one: ScenarioResult) -> str:
    """A scenario on one line, for people."""
    parts = ["passed" if one.passed else f"FAILED: {one.why_failed}"]
    if one.outage_s_max is not None:
        parts.append(f"worst outage {one.outage_s_max:.2f} s{_goal(one)}")
    parts += [f"{one.operations:,} operations", f"{one.took_s:.0f} s"]
    return f"{one.name}: {', '.join(parts)}"


def _goal(one: ScenarioResult) -> str:
    if one.outage_goal_s is None:
        return ""
    patience = "" if one.patience == 1 else f" times {one.patience:g}"
    return f", goal {one.outage_goal_s:.2f}{patience}{' MISSED' if one.missed_goal else ''}"


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def report_of(scenarios: Iterable[ScenarioResult], conditions: Mapping[str, str]) -> FaultsReport:
    """The file's content, in the order of the fault numbers."""
    ordered = sorted(scenarios, key=lambda one: (_number(one.fault), one.name))
    totals = Totals(
        scenarios=len(ordered),
        passed=sum(one.passed for one in ordered),
        faults_fired=sum(one.faults_fired for one in ordered),
        operations=sum(one.operations for one in ordered),
        acknowledged_lost=sum(one.acknowledged_lost for one in ordered),
        double_spends=sum(one.double_spends for one in ordered),
        goals=sum(one.has_goal for one in ordered),
        goals_missed=sum(one.missed_goal for one in ordered),
        took_s=round(sum(one.took_s for one in ordered), 1),
    )
    commits = ", ".join(sorted({one.commit for one in ordered if one.commit}))
    told = dict(conditions) | ({"commit": commits} if commits else {})
    return FaultsReport(scenarios=ordered, totals=totals, conditions=told)


def report_path(profile: str) -> Path:
    """Where the report of runs on this kind of log is, with `-workers` behind it where all replicas serve."""
    return JSON if profile == "kafka" else JSON.with_stem(f"{JSON.stem}-{profile}")


def read_report(path: Path = JSON) -> FaultsReport:
    """The content of the file. Raises FileNotFoundError and msgspec.DecodeError."""
    return msgspec.json.decode(path.read_bytes(), type=FaultsReport)


def add_to_report(results: Iterable[ScenarioResult], conditions: Mapping[str, str], path: Path = JSON) -> None:
    """Put results in place of those of the same name; the others stay."""
    try:
        known = {one.name: one for one in read_report(path).scenarios}
    except (FileNotFoundError, msgspec.DecodeError):
        known = {}
    commit = conditions.get("commit", "")
    known |= {one.name: msgspec.structs.replace(one, commit=commit) for one in results}
    write_json(path, msgspec.to_builtins(report_of(known.values(), conditions)))


def write_json(path: Path, document: Any) -> None:
    """The document, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    partial.replace(path)


def _number(fault: str) -> tuple[int, str]:
    digits = fault.removeprefix("F")
    return (int(digits), "") if digits.isdecimal() else (1_000, fault)
