"""Finds the first seed that catches each mutant: `python -m tests.simulation.mutants [--pin] [NAME...]`."""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor

import msgspec

from tests.simulation.mutants import MUTANTS
from tests.simulation.mutants.catching import PINS_FILE, Catch, catch, table


def main() -> int:
    """Search, print the table, and with --pin keep the seeds for the tests."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.mutants", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seeds-max", type=int, default=2_000)
    parser.add_argument("--pin", action="store_true", help=f"write {PINS_FILE}")
    arguments = parser.parse_args()
    names = arguments.names or [mutant.name for mutant in MUTANTS]
    with ProcessPoolExecutor(2) as pool:
        catches: list[Catch] = list(pool.map(catch, names, [range(1, arguments.seeds_max + 1)] * len(names)))
    print(table(catches))
    if arguments.pin:
        pins = msgspec.json.decode(PINS_FILE.read_bytes()) if PINS_FILE.exists() else {}
        pins |= {found.name: found.seed for found in catches if found.seed}
        PINS_FILE.write_bytes(msgspec.json.format(msgspec.json.encode(dict(sorted(pins.items()))), indent=1) + b"\n")
    return 0 if all(found.seed for found in catches) else 1


if __name__ == "__main__":
    sys.exit(main())
