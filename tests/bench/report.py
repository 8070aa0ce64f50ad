"""What a run of the bench found: printed line by line as it is measured, and written as one JSON document at the
end."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from rich.console import Console

out = Console(soft_wrap=True, highlight=False)


class Report:
    """Figures by name, flat, for programs; the same figures as lines of text for people."""

    def __init__(self) -> None:
        self.figures: dict[str, object] = {}

    def section(self, title: str) -> None:
        """A heading for the lines that follow."""
        out.print(f"\n[bold]{title}[/]")

    def line(self, label: str, text: str) -> None:
        """A line for people."""
        out.print(f"  {label:44} {text}")

    def add(self, name: str, value: object, label: str, text: str) -> None:
        """A figure and its line."""
        self.figures[name] = value
        self.line(label, text)

    def add_runs(self, name: str, values: Sequence[float], label: str, unit: str) -> float:
        """The median of several runs, with all of them beside it; returns the median."""
        middle = round(median(values), 3)
        self.figures[f"{name}_runs"] = [round(value, 3) for value in values]
        runs = " ".join(number(value) for value in values)
        self.add(name, middle, label, f"{number(middle)} {unit}   (runs: {runs})")
        return middle

    def write(self, path: Path) -> None:
        """Write the figures as JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.figures, indent=2) + "\n")


def number(value: float) -> str:
    """A figure with the digits that mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def quantiles(latency_ms: dict[str, float]) -> str:
    """Latencies in one line."""
    return "  ".join(f"{name} {value:.2f}" for name, value in latency_ms.items()) + " ms"
