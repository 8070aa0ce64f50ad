"""Runs many seeds on all processors and adds up what they covered."""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec

from tests.simulation.draw import Size
from tests.simulation.kinds import plan_of, play
from tests.simulation.plan import OF_SUITES, Damage, FaultKind

STRIKES = (
    "statement_lost",
    "statement_late",
    "answer_lost",
    "answer_late",
    "log_unreachable",
    "append_held",
    "append_late",
    "append_lost",
    "append_repeated",
    "append_reordered",
    "queue_full",
    "read_late",
    "index_read_failed",
    "index_write_failed",
    "reply_late",
    "reply_lost",
    "reply_too_late",
    "wrong_replica",
    *[f"stranger_{damage}" for damage in Damage if damage is not Damage.PERIOD],
)
"""What the weather and strangers do to single messages, besides the planned faults."""


class Totals(msgspec.Struct):
    """The totals of several runs."""

    seeds: int = 0
    operations: int = 0
    records: int = 0
    epochs: int = 0
    virtual_s: float = 0.0
    answers: dict[str, int] = {}
    strikes: dict[str, dict[str, int]] = {}  # misfortune -> step -> how often
    failures: dict[int, str] = {}  # seed -> its first violation

    def add(self, other: Totals) -> None:
        """Add another one's numbers."""
        self.seeds += other.seeds
        self.operations += other.operations
        self.records += other.records
        self.epochs += other.epochs
        self.virtual_s += other.virtual_s
        self.answers = dict(Counter(self.answers) + Counter(other.answers))
        for what, steps in other.strikes.items():
            self.strikes[what] = dict(Counter(self.strikes.get(what, {})) + Counter(steps))
        self.failures |= other.failures


def run_seeds(seeds: Iterable[int], size: Size | None = None) -> Totals:
    """Run seeds one after the other."""
    totals = Totals()
    for seed in seeds:
        totals.add(run_seed(seed, size))
    gc.collect()
    return totals


def run_seed(seed: int, size: Size | None = None) -> Totals:
    """Run one seed."""
    try:
        outcome = play(plan_of(seed, size))
    except Exception as error:
        return Totals(1, failures={seed: f"broke the simulator: {error!r}"})
    strikes: dict[str, dict[str, int]] = {}
    for (what, step), count in outcome.strikes.items():
        strikes.setdefault(str(what), {})[step] = count
    return Totals(
        1,
        outcome.operations,
        outcome.records,
        outcome.epochs,
        outcome.virtual_s,
        dict(outcome.counts),
        strikes,
        {seed: outcome.violations[0]} if outcome.violations else {},
    )


def run_in_parallel(
    seeds: Sequence[int], size: Size | None = None, *, workers: int = 2, chunk: int = 25
) -> Iterator[tuple[Sequence[int], Totals]]:
    """Run seeds on several processors; yields each chunk as it is done."""
    chunks = [seeds[at : at + chunk] for at in range(0, len(seeds), chunk)]
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        running = {pool.submit(run_seeds, part, size): part for part in chunks}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def never_fired(totals: Totals) -> list[str]:
    """Misfortunes that did not happen once, of those that every plan may have."""
    kinds = [str(kind) for kind in FaultKind if kind not in OF_SUITES]
    return [what for what in (*kinds, *STRIKES) if not totals.strikes.get(what)]


def coverage_table(totals: Totals) -> str:
    """How often each misfortune struck a replica at each step; a dot means never."""
    steps = sorted({step for found in totals.strikes.values() for step in found}, key=_place)
    heads = [step.replace("activating.", "a.").replace("active.", "").replace("stepping_down.", "s.") for step in steps]
    widths = [max(5, len(head)) for head in heads]
    lines = [f"{'':<20}" + " ".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))]
    for what in sorted(totals.strikes):
        found = totals.strikes[what]
        cells = [f"{found.get(step) or '.':>{width}}" for step, width in zip(steps, widths, strict=True)]
        lines.append(f"{what:<20}" + " ".join(cells))
    return "\n".join(lines)


def _place(step: str) -> int:
    from tests.simulation.plan import STEPS

    return STEPS.index(step) if step in STEPS else -1
