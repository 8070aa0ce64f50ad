"""Charts as SVG text, to be put into a page: no file, no script, no font from elsewhere."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from math import nan
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib.figure import Figure

COLOURS = {
    "NOTARISED": "#2a7f62",
    "STATE_CONFLICT": "#c8553d",
    "TX_ID_REUSED": "#8e5ea2",
    "TIME_WINDOW_CLOSED": "#d9a441",
}
_WIDTH_IN = 8.5
_CHARACTER_IN = 0.078  # of a label, at the most usual
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "notary",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def over_time(
    series: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    label: str,
    interval_s: int,
    activations: Sequence[int] = (),
) -> str:
    """Lines over time, microseconds UTC, by name; `activations`: the times of take-overs, as vertical lines.

    A line ends where the next value is more than an interval away, and a value alone is a dot."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure(label)
        for name, (at_us, values) in series.items():
            times, drawn = _broken(at_us, values, interval_s * 1_000_000)
            axes.plot(times, drawn, label=name, color=COLOURS.get(name), linewidth=1.4, marker=".", markersize=2.5)
        for taken_over_us in activations:
            axes.axvline(_time(taken_over_us), color="#888", linestyle=":", linewidth=1)
        if series:
            axes.legend(frameon=False)
        figure.autofmt_xdate(bottom=0.22)
        return _svg(figure)


def _broken(at_us: Sequence[int], values: Sequence[float], interval_us: int) -> tuple[list[datetime], list[float]]:
    """The points of a line, with one that is no number in each gap: nothing is drawn through it."""
    times: list[datetime] = []
    drawn: list[float] = []
    for at, value in zip(at_us, values, strict=True):
        if times and _time(at - interval_us) > times[-1]:
            times.append(_time(at - interval_us))
            drawn.append(nan)
        times.append(_time(at))
        drawn.append(value)
    return times, drawn


def bars(names: Sequence[str], values: Sequence[float], label: str) -> str:
    """Horizontal bars, the first on top."""
    with mpl.rc_context(_STYLE):
        shown = [name if len(name) <= 40 else f"{name[:18]}…{name[-18:]}" for name in names]
        labels_in = 0.25 + _CHARACTER_IN * max(map(len, shown), default=0)
        figure, axes = _figure("", height_in=0.6 + 0.24 * max(1, len(names)), left_in=labels_in)
        axes.barh(range(len(names)), values, color="#41708f")
        axes.set_yticks(range(len(names)), shown)
        axes.invert_yaxis()
        axes.set_xlabel(label)
        return _svg(figure)


def histogram(up_to: Sequence[float], counts: Sequence[int], label: str) -> str:
    """Counts up to bounds that grow by a fifth of a decade, on a logarithmic axis."""
    with mpl.rc_context(_STYLE):
        figure, axes = _figure("operations")
        lower = [bound / 10**0.2 for bound in up_to]
        axes.bar(
            lower, counts, [bound - low for bound, low in zip(up_to, lower, strict=True)], align="edge", color="#41708f"
        )
        axes.set_xscale("log")
        axes.set_xlabel(label)
        return _svg(figure)


def _figure(label: str, height_in: float = 2.8, left_in: float = 0.75) -> tuple[Figure, Any]:
    """With margins that are given: to have them worked out takes as long as the drawing itself."""
    figure = Figure(figsize=(_WIDTH_IN, height_in))
    figure.subplots_adjust(
        left=left_in / _WIDTH_IN, right=1 - 0.15 / _WIDTH_IN, bottom=0.45 / height_in, top=1 - 0.1 / height_in
    )
    axes = figure.add_subplot()
    axes.set_ylabel(label)
    return figure, axes


def _svg(figure: Figure) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _time(at_us: int) -> datetime:
    return datetime.fromtimestamp(at_us / 1e6, UTC)


def instant(at: datetime) -> str:
    """A time for people."""
    return at.isoformat(sep=" ", timespec="milliseconds" if at.microsecond else "seconds").replace("+00:00", " UTC")
