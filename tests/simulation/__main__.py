"""Runs one seed, or one kept plan, and prints its story: `python -m tests.simulation --seed 7 --story`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from pytest import MonkeyPatch

from tests.simulation.draw import Size
from tests.simulation.kinds import plan_of, play
from tests.simulation.mutants import MUTANTS
from tests.simulation.plan import Plan, decode_plan, encode_plan
from tests.simulation.shrink import shrink
from tests.simulation.soak import LARGE


def main() -> int:
    """0 when all promises were kept, 1 when one was broken."""
    arguments = _arguments()
    with MonkeyPatch.context() as patch:
        for mutant in MUTANTS:
            if mutant.name == arguments.mutant:
                mutant.apply(patch)
        plan = _plan(arguments.plan, arguments.seed, LARGE if arguments.large else None)
        if arguments.shrink:
            plan = shrink(plan, print)
            arguments.shrink.write_bytes(encode_plan(plan))
        outcome = play(plan)
    if arguments.story:
        for line in outcome.story.lines():
            print(line)
    print(
        f"seed {plan.seed}: {outcome.virtual_s:.1f} virtual s, {outcome.operations} operations,"
        f" {outcome.records} records, {outcome.epochs} epochs, {dict(outcome.counts)}"
    )
    for violation in outcome.violations:
        print("VIOLATED", violation)
    return 1 if outcome.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--large", action="store_true", help="the plan that `soak --large` draws from the seed")
    parser.add_argument("--plan", type=Path, help="a plan that was kept, instead of a seed")
    parser.add_argument("--story", action="store_true", help="tell every event")
    parser.add_argument("--shrink", type=Path, metavar="FILE", help="make the failing plan small, and keep it")
    parser.add_argument("--mutant", choices=[mutant.name for mutant in MUTANTS], help="run with this defect")
    return parser.parse_args()


def _plan(file: Path | None, seed: int, size: Size | None) -> Plan:
    return decode_plan(file.read_bytes()) if file else plan_of(seed, size)


if __name__ == "__main__":
    sys.exit(main())
