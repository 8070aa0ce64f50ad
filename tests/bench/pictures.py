"""The pictures of docs/benchmarks.md, as SVG text."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib.figure import Figure

Curve = Sequence[Mapping[str, float]]
"""One mapping for each offered rate: `offered_per_s`, `failed` (share), and milliseconds by quantile."""

_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "notary",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_COLOURS = ("#2a7f62", "#c8553d")
_LINES = {"p50": "-", "p99": "--", "p99.9": ":"}


def latency_curve(curves: Mapping[str, Curve], capacity_per_s: float) -> str:
    """p50, p99 and p99.9 against the offered rate, on a logarithmic axis; a rate that was not kept up with has none."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure("requests offered a second, at random times", "latency, ms")
        for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
            for quantile, line in _LINES.items():
                points = [(one["offered_per_s"], one[quantile]) for one in curve if quantile in one]
                axes.plot(*zip(*points, strict=True), line, color=colour, label=f"{name}, {quantile}", marker=".")
            refused = [one for one in curve if one["failed"] and "p50" in one]
            axes.plot([o["offered_per_s"] for o in refused], [o["p50"] for o in refused], "x", color=colour)
        axes.axvline(capacity_per_s, color="#888", linestyle=":", linewidth=1)
        axes.annotate(
            "capacity", (capacity_per_s, 1), xycoords=("data", "axes fraction"), ha="right", va="top", color="#666"
        )
        axes.set_yscale("log")
        axes.set_xlim(left=0)
        axes.legend(frameon=False, ncols=len(curves))
        return _svg(figure)


def growth(series: Mapping[str, Mapping[int, float]]) -> str:
    """Submissions a second against the number of states that were there before, by name."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure("consumed states in the index", "submissions/s")
        for (name, rates), colour in zip(series.items(), _COLOURS, strict=False):
            axes.plot(list(rates), list(rates.values()), "-", color=colour, label=name, marker=".")
        axes.set_xscale("symlog", linthresh=1_000_000)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
        return _svg(figure)


def _figure(x: str, y: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(8.5, 4.5), layout="constrained")
    axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return out.getvalue()
