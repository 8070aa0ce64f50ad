"""The demo's report: a table for people, a JSON document for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from replica.cli.common import make_table
from replica.cli.demo.kill import KillResult
from replica.cli.demo.phases import PhaseResult
from replica.cli.demo.requests import RequestFile

_MEANINGS = {
    "notarise": "notarised",
    "resubmit": "the same success, the same place in the log",
    "double-spend": "a conflict that names the hash of the right winner",
    "reuse ids": "refused: TX_ID_REUSED",
    "look up": "found by the new active, at the same place in the log",
}


@dataclass(frozen=True, slots=True)
class DemoReport:
    """All that the demo found out. `check` is the report of `notary check`."""

    version: str
    requests: RequestFile
    phases: tuple[PhaseResult, ...]
    kill: KillResult
    check: dict[str, Any]

    @property
    def clean(self) -> bool:
        """Whether nothing was lost and nothing was wrong."""
        return all(phase.clean for phase in self.phases) and self.kill.clean and bool(self.check["clean"])

    def document(self) -> dict[str, Any]:
        """The report as JSON."""
        return {
            "clean": self.clean,
            "version": self.version,
            "requests": {
                "origin": self.requests.origin,
                "count": len(self.requests.requests),
                "left_out": self.requests.left_out,
            },
            "phases": [asdict(phase) for phase in self.phases],
            "kill": asdict(self.kill),
            "check": self.check,
        }

    def print(self, out: Console) -> None:
        """The report as tables."""
        out.print(self._phases_table())
        out.print()
        out.print(self._facts_table())
        for example in [*self.kill.wrong, *(text for phase in self.phases for text in phase.wrong)]:
            out.print(f"[red]not as it must be:[/] {example}")
        for finding in self.check["findings"]:
            out.print(f"[bold red]{finding['code']}[/]: {finding['message']} {finding['evidence']}")
        good = "[bold green]Nothing was lost, and nothing was wrong.[/]"
        out.print(f"\n{good if self.clean else '[bold red]SOMETHING WAS LOST OR WRONG: see above.[/]'}\n")

    def _phases_table(self) -> Table:
        table = make_table("phase", ">asked", ">as it must be", ">per second", "which is")
        *before, after = self.phases
        for phase in before:
            _add_phase(table, phase)
        notarised = _counted(self.kill.notarised, self.kill.clean)
        table.add_row("kill", f"{self.kill.submitted:,}", notarised, "", "notarised, before or after the fail-over")
        _add_phase(table, after)
        return table

    def _facts_table(self) -> Table:
        kill, summary = self.kill, self.check["summary"]
        table = make_table("", "")
        table.show_header = False
        steps = ", ".join(f"{name} {took_s * 1000:.0f} ms" for name, took_s in kill.activation_steps_s.items())
        unanswered = ", ".join(f"{count} {code}" for code, count in sorted(kill.attempts_unanswered.items()))
        took_over = (
            f"{kill.killed} by SIGKILL; {kill.successor} took over, epoch {kill.epoch_before} to {kill.epoch_after}"
        )
        table.add_row("killed", took_over)
        table.add_row("outage", f"[bold]{kill.outage_s:.3f} s[/] from the last success before to the first one after")
        table.add_row("its activation", steps)
        table.add_row("attempts without an answer", f"{unanswered or 'none'}; sent again with the same ids")
        table.add_row("read again by another process", f"{summary['records']:,} records, from the first one")
        table.add_row("answers checked", f"{summary['operations']:,}, of {summary['receipts']:,} the receipts as well")
        table.add_row("completions checked", f"{summary['completions']:,}")
        table.add_row("findings", str(sum(self.check["counts"].values())))
        return table


def _add_phase(table: Table, phase: PhaseResult) -> None:
    rate = phase.count / max(phase.took_s, 1e-3)
    expected = _counted(phase.expected, phase.clean)
    table.add_row(phase.title, f"{phase.count:,}", expected, f"{rate:,.0f}", _MEANINGS[phase.title])


def _counted(count: int, good: bool) -> str:
    return f"[{'green' if good else 'bold red'}]{count:,}[/]"
