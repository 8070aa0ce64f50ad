"""Runs one seed, or one plan that was kept: `python -m tests.simulation --seed 7 --story`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.simulation.draw import draw
from tests.simulation.plan import decode_plan
from tests.simulation.world import simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plan", type=Path, help="a plan as JSON, instead of a seed")
    parser.add_argument("--story", action="store_true", help="tell every event")
    arguments = parser.parse_args()
    plan = decode_plan(arguments.plan.read_bytes()) if arguments.plan else draw(arguments.seed)
    outcome = simulate(plan)
    if arguments.story:
        for line in outcome.story.lines():
            print(line)
    print(
        f"seed {plan.seed}: {outcome.virtual_s:.1f} virtual s, {outcome.operations} attempts,"
        f" {outcome.records} records, {outcome.epochs} epochs, {dict(outcome.counts)}"
    )
    for violation in outcome.violations:
        print("VIOLATED", violation)
    return 1 if outcome.violations else 0


if __name__ == "__main__":
    sys.exit(main())
