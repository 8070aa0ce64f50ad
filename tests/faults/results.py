"""`python -m tests.faults.results [PROFILE]`: a page of results, from what the newest runs of this clone have written.

For `kafka`, the default, it is docs/results.md; where every replica serves (`kafka-workers`, `postgres-workers`, ...)
docs/results-workers.md, with all such profiles that were run. Runs on other profiles are only told.

Nothing on the page is typed by hand: faults are from build/faults.json (`make faults`), seeds from build/simulation
(`make soak`, else CI's), mutants from the seeds pinned for them, times from build/bench.json (`make bench`). What was
not run is not on the page.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from tests.faults.report import FaultsReport, ScenarioResult, line_of, read_report, report_path

READER = "For whoever doubts a figure, or compares two releases; a page to search."
PAGE = Path("docs/results.md")
WORKERS_PAGE = Path("docs/results-workers.md")
WORKERS = ("kafka-workers", "postgres-workers", "raft-workers", "embedded-workers")
BENCH = Path("build/bench.json")
SOAK = Path("build/simulation/soak.json")
COVERAGE = Path("build/simulation-coverage.json")
PINS = Path("tests/simulation/mutants/pins.json")

_BENCH_LINES = {  # name of the figure, and what it is
    "kill_outage": "kill -9 of the active",
    "graceful_stop_outage": "orderly stop of the active",
    "frozen_core_outage": "the active's core frozen beyond its lease",
    "frozen_group_outage": "the active frozen beyond its lease",
    "disconnected_kill_outage": "kill -9, passives away from the log",
}


class Simulated(msgspec.Struct, frozen=True):
    """What the simulator has run."""

    seeds: int
    operations: int


def render(
    faults: FaultsReport | None,
    simulated: Simulated | None,
    pins: Mapping[str, int],
    bench: Mapping[str, Any] | None,
) -> str:
    """The page, in Markdown."""
    parts = [
        f"# Results\n\n{READER} Written by `python -m tests.faults.results` from the newest runs; do not edit. "
        "Each line can be run again: `make faults`, `make soak`, `make bench`. An outage is the time between two "
        "successes that clients saw, through HAProxy; one machine does everything at once, clients and checker "
        "included."
    ]
    parts += [] if faults is None else [_faults("Faults on real parts", faults)]
    parts.append(_simulator(simulated, pins))
    parts += [] if bench is None else [_bench(bench)]
    return "\n\n".join(parts) + "\n"


def render_workers(reports: Mapping[str, FaultsReport]) -> str:
    """The page of the runs where every replica serves, by profile, in Markdown."""
    totals = [report.totals for report in reports.values()]
    head = (
        f"# Results where every replica serves\n\n{READER} Written by "
        "`python -m tests.faults.results kafka-workers` from the newest runs; do not edit. Each line can be run again: "
        "`make faults SERVING=all`, with `LOG=postgres` or "
        "`LOG=embedded`. An outage is the time between two successes that clients saw, through HAProxy where nothing "
        'else is said; "the active" is the holder of the lock. [What each fault meets](results/faults.md).\n\n'
        f"Together: **{sum(one.operations for one in totals):,} operations checked, "
        f"{sum(one.acknowledged_lost for one in totals)} acknowledged answers lost or changed, "
        f"{sum(one.double_spends for one in totals)} double spends**."
    )
    return "\n\n".join([head, *(_faults(f"Profile {name}", report) for name, report in reports.items())]) + "\n"


def _faults(title: str, report: FaultsReport) -> str:
    totals = report.totals
    conditions = ", ".join(f"{name} {value}" for name, value in report.conditions.items())
    rows = [
        [
            one.name,
            f"{one.faults_fired}",
            f"{one.operations:,}",
            _seconds(one.outage_s_median),
            f"**{_seconds(one.outage_s_max)}**" if one.missed_goal else _seconds(one.outage_s_max),
            _goal(one),
            f"{one.acknowledged_lost}",
            f"{one.double_spends}",
            f"{one.took_s:.0f}",
            "yes" if one.passed else "**no**",
        ]
        for one in report.scenarios
    ]
    heads = [
        "scenario",
        "faults fired",
        "operations",
        "outage, median s",
        "worst s",
        "goal s",
        "lost",
        "double",
        "took s",
        "passed",
    ]
    summary = (
        f"{totals.passed} of {totals.scenarios} scenarios passed: {totals.faults_fired} faults seen to take effect, "
        f"**{totals.operations:,} operations checked, {totals.acknowledged_lost} acknowledged answers lost or changed, "
        f"{totals.double_spends} double spends**. Every answer and every completion was compared with the log by "
        f"`notary check`. {totals.goals - totals.goals_missed} of {totals.goals} scenarios that have a goal for the "
        f"outage met it. All of them together took {totals.took_s / 60:.0f} minutes. Conditions: {conditions}."
    )
    if any(one.patience != 1 for one in report.scenarios):
        summary += ' The machine did other things too: where a goal says "times", an outage may be so much longer.'
    return f"## {title}\n{summary}\n\n{_table(heads, rows)}{_failures(report.scenarios)}"


def _goal(one: ScenarioResult) -> str:
    median = "" if one.median_goal_s is None else f", median {_seconds(one.median_goal_s)}"
    patience = "" if one.patience == 1 or one.outage_goal_s is None else f", times {one.patience:g}"
    return f"{_seconds(one.outage_goal_s)}{median}{patience}"


def _failures(scenarios: Sequence[ScenarioResult]) -> str:
    failed = [one for one in scenarios if not one.passed]
    lines = [f"- {one.name}: {one.why_failed}" for one in failed]
    return "\n\nNot passed:\n" + "\n".join(lines) if lines else ""


def _simulator(simulated: Simulated | None, pins: Mapping[str, int]) -> str:
    seeds = sorted(pins.values())
    caught = (
        f"{len(pins)} of {len(pins)} mutants of the product's code are caught, half of them within "
        f"{seeds[len(seeds) // 2]} seeds, the slowest within {seeds[-1]}."
    )
    run = "" if simulated is None else f"{simulated.seeds:,} seeds run, {simulated.operations:,} operations checked. "
    rows = [
        [name.replace("_", " "), str(seed)] for name, seed in sorted(pins.items(), key=lambda pin: (pin[1], pin[0]))
    ]
    return f"## Simulator\n{run}{caught}\n\n{_table(['mutant', 'first seed that notices'], rows)}"


def _bench(figures: Mapping[str, Any]) -> str:
    rows = [
        [what, _seconds(figures[f"{name}_s_median"]), _seconds(figures[f"{name}_s_max"])]
        for name, what in _BENCH_LINES.items()
        if f"{name}_s_median" in figures
    ]
    return (
        f"## Fail-over with a long log\n`make bench`: one broker.\n\n{_table(['fault', 'median s', 'worst s'], rows)}"
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _summary(report: FaultsReport) -> str:
    totals = report.totals
    return (
        f"{totals.passed} of {totals.scenarios} passed, {totals.goals_missed} of {totals.goals} goals missed, "
        f"{totals.operations:,} operations, {totals.acknowledged_lost} lost, {totals.double_spends} double spends, "
        f"{totals.took_s / 60:.0f} min"
    )


def main(profile: str = "kafka") -> int:
    """Print the scenarios and write the page; returns 1 when there is no run to report, or one has not passed."""
    faults = _report_of(profile)
    for one in [] if faults is None else faults.scenarios:
        print(line_of(one))
    print("no scenario was run" if faults is None else _summary(faults))
    if profile in WORKERS:
        reports = {name: report for name in WORKERS if (report := _report_of(name)) is not None}
        WORKERS_PAGE.write_text(render_workers(reports))
        print(f"{WORKERS_PAGE}: written")
    elif profile == "kafka":
        bench = msgspec.json.decode(BENCH.read_bytes()) if BENCH.exists() else None
        PAGE.write_text(render(faults, _simulated(), msgspec.json.decode(PINS.read_bytes()), bench))
        print(f"{PAGE}: written")
    return 0 if faults is not None and faults.totals.passed == faults.totals.scenarios else 1


def _report_of(profile: str) -> FaultsReport | None:
    path = report_path(profile)
    return read_report(path) if path.exists() else None


def _simulated() -> Simulated | None:
    if SOAK.exists():
        totals: Simulated = msgspec.json.decode(SOAK.read_bytes(), type=_Soak).totals
        return totals
    return msgspec.json.decode(COVERAGE.read_bytes(), type=Simulated) if COVERAGE.exists() else None


class _Soak(msgspec.Struct):
    totals: Simulated


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
