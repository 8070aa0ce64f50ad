"""What rules 3 cost a follower: the look-up of each request's key, over RocksDB.

    python -m tests.bench.party_keys --keys 100,10000

Runs are as long as a follower applies at a time: short ones while it serves, long ones while it catches up. Each
request of a run is signed by one of so many registered keys, at random. Nothing else is measured: no log, no verdict.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

from msgspec.structs import replace

from replica.index.newest import newest_registrations, noted
from replica.index.rocks import RocksIndex
from replica.notary.counted import CountedNote, CountedRequest
from replica.notary.parties import encode_officers
from replica.notary.position import Position, begin
from replica.notary.reading import read_records
from tests.bench.report import Report
from tests.worlds.notary_logs import PARTY, TOPIC, LogMaker, request_of, submission_of

RUNS = {"serving": 20, "catching up": 1_000}  # records of a run
MEASURED = 20_000  # records, for each figure
OFFICER = b"o" * 32


def registered(index: RocksIndex, keys: int) -> Position:
    """Fill the index with so many keys of one party; returns the position after them."""
    maker = LogMaker(format=2)
    maker.barrier(1, rules=3)
    maker.act("officers", body=encode_officers([OFFICER]), by=OFFICER)
    for number in range(keys):
        maker.register(PARTY, key=number.to_bytes(32, "big"), by=OFFICER)
    reading = read_records(begin(TOPIC), maker.log)
    notes = [note for note in reading.counted if isinstance(note, CountedNote)]
    index.write(noted(index, notes, 0), reading.position)
    return reading.position


def run_of(records: int, keys: int, after: int, source: random.Random) -> list[CountedRequest]:
    """Counting requests that follow on a log offset."""
    maker = LogMaker(format=2)
    maker.barrier(1, rules=3)
    maker.submit(request_of(1, (1,)))
    (plain,) = [one for one in read_records(begin(TOPIC), maker.log).counted if isinstance(one, CountedRequest)]
    found = []
    for number in range(records):
        key = source.randrange(keys).to_bytes(32, "big")
        submission = replace(submission_of(plain.request), public_key=key)
        record = replace(plain.record, submission=submission)
        found.append(replace(plain, offset=after + 1 + number, record=record))
    return found


def look_ups_us(index: RocksIndex, run: list[CountedRequest]) -> float:
    """Microseconds a record."""
    rounds = MEASURED // len(run)
    began_s = perf_counter()
    for _ in range(rounds):
        found = newest_registrations(index, run)
    took_s = perf_counter() - began_s
    if None in found:
        raise RuntimeError("a registered key was not found")
    return 1e6 * took_s / (rounds * len(run))


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.party_keys", description=__doc__)
    parser.add_argument("--keys", default="100,10000", help="registered keys, with commas")
    parser.add_argument("--json", type=Path, default=Path("build/party-keys.json"))
    given = parser.parse_args()
    report, source = Report(), random.Random(1)
    report.section(f"The keys of rules 3, over RocksDB, load {os.getloadavg()[0]:.1f}")
    for keys in map(int, given.keys.split(",")):
        with TemporaryDirectory(prefix="party-keys-") as folder:
            index = RocksIndex(Path(folder) / "index")
            position = registered(index, keys)
            for name, records in RUNS.items():
                found = look_ups_us(index, run_of(records, keys, position.offset, source))
                label = f"{keys:,} keys, {name}, {records:,} records a run"
                report.add(f"party_keys_{keys}_{records}_us", round(found, 2), label, f"{found:.2f} µs a record")
            index.close()
    report.write(given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
