"""The tables of docs/scaling.md: what the measured costs of the parts allow at most, by arithmetic alone.

python -m tests.bench.scaling_page --into docs/scaling.md    # from the tables of docs/reference-deployment.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.bench import sizing_page
from tests.bench.machines import (
    ACTIVE_FRONT_ENDS,
    FOLLOWING_BROKER,
    HAPROXY,
    LEADING_BROKER,
    PASSIVE_CORE,
    PRIMARY,
    UTILISATION,
    Measured,
)
from tests.bench.sizing_page import THREAD, parse, replaced

BEGIN, END = "<!-- scaling -->\n", "<!-- end of scaling -->\n"
SIZING = Path("docs/reference-deployment.md")
TARGET = 50_000.0  # batched submissions a second
WORKERS = (1, 3, 5, 10)
MORE_PROCESSES = {ACTIVE_FRONT_ENDS, HAPROXY}  # these spread over processors; the others are one thread's work
US = 1e6


@dataclass(frozen=True, slots=True)
class Limit:
    """What one part carries. `per_s`: batched submissions a second of one core of it, wholly busy."""

    part: str
    cpu_us: float
    spreads: bool  # over processors

    @property
    def per_s(self) -> float:
        """Of one core."""
        return US / self.cpu_us

    def cores(self, target_per_s: float) -> float:
        """Cores at the target, so busy as the reference deployment has them."""
        return target_per_s * self.cpu_us / US / UTILISATION


def limits(measured: Measured) -> list[Limit]:
    """The parts of active-passive operation, the scarcest first. What cannot spread ends where one core ends."""
    names = (ACTIVE_FRONT_ENDS, PASSIVE_CORE, LEADING_BROKER, FOLLOWING_BROKER, PRIMARY, HAPROXY)
    parts = [Limit(name, measured.parts[name].cpu_us.batch, name in MORE_PROCESSES) for name in names]
    parts.append(Limit(THREAD, measured.core_thread_us.batch, False))
    return sorted(parts, key=lambda limit: (limit.spreads, limit.per_s))


def worker_thread_us(measured: Measured, workers: int) -> float:
    """Upper bound of the busiest thread's time per submission in each of so many workers.

    Every worker applies everything, which is the passive's whole work. What only the active does is shared.
    """
    applies_us = measured.parts[PASSIVE_CORE].cpu_us.batch
    return applies_us + max(0.0, measured.core_thread_us.batch - applies_us) / workers


def render(measured: Measured) -> str:
    """The page's part between BEGIN and END."""
    return "\n".join([*_limits(measured), "", *_workers(measured)]) + "\n"


def _limits(measured: Measured) -> Iterable[str]:
    yield f"| part | a batched submission | one core carries | more processors help | cores at {TARGET:,.0f}/s |"
    yield "|---|---|---|---|---|"
    for limit in limits(measured):
        fits = limit.spreads or limit.per_s >= TARGET
        cores = f"{limit.cores(TARGET):.1f}" if fits else f"**ends at {limit.per_s:,.0f}/s**"
        spreads = "yes" if limit.spreads else "no"
        yield f"| {limit.part} | {limit.cpu_us:.1f} µs | {limit.per_s:,.0f}/s | {spreads} | {cores} |"


def _workers(measured: Measured) -> Iterable[str]:
    yield "| replicas that admit | busiest thread of each | all together, at most | over one |"
    yield "|---|---|---|---|"
    alone = US / measured.core_thread_us.batch
    for workers in WORKERS:
        each_us = measured.core_thread_us.batch if workers == 1 else worker_thread_us(measured, workers)
        yield f"| {workers} | {each_us:.1f} µs | {US / each_us:,.0f}/s | {US / each_us / alone:.2f} |"


def main() -> None:
    """Print the tables, or put them into a page."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scaling_page", description=__doc__)
    parser.add_argument("--sizing", type=Path, default=SIZING, help="the page with the measured costs")
    parser.add_argument("--into", type=Path, help="a page, whose tables are replaced")
    arguments = parser.parse_args()
    measured, _ = parse(sizing_part(arguments.sizing.read_text()))
    if arguments.into is None:
        print(render(measured), end="")
    else:
        arguments.into.write_text(replaced(arguments.into.read_text(), render(measured), BEGIN, END))


def sizing_part(page: str) -> str:
    """The tables of a page of sizing."""
    return page.partition(sizing_page.BEGIN)[2].partition(sizing_page.END)[0]


if __name__ == "__main__":
    main()
